"""Blocks as ggml makes them, next to what llama.cpp writes into files and to gguf's own decoder."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import gguf
import numpy as np
import pytest

from slm.llama.blocks import codec
from slm.llama.gguf_check import GGML_TYPES

KINDS = ("q4_0", "q8_0", "iq4_nl", "q4_k", "q3_k", "q6_k", "tq2_0")


def matrix(kind: str, rows: int = 67, width: int = 512, seed: int = 1, part: slice = slice(None)) -> codec.Matrix:
    """A matrix larger than a piece, its blocks and values not yet filled."""
    weights = np.random.default_rng(seed).normal(0, 0.02, (rows, width)).astype(np.float32)
    blocks = np.zeros((rows, codec.row_bytes(kind, width)), np.uint8)
    return codec.Matrix(kind=kind, weights=weights, blocks=blocks, rounded=np.zeros_like(weights), rows=part)


@pytest.mark.parametrize("kind", KINDS)
def test_the_values_are_those_of_the_blocks_whatever_the_threads(kind):
    one, many = matrix(kind), matrix(kind)
    for made, n_threads in ((one, 1), (many, 3)):
        with ThreadPoolExecutor(n_threads) as pool:
            codec.quantize([made], pool)
    assert np.array_equal(one.blocks, many.blocks)
    decoded = gguf.quants.dequantize(one.blocks, gguf.GGMLQuantizationType(GGML_TYPES[kind][0]))
    np.testing.assert_allclose(one.rounded, decoded, rtol=1e-6, atol=0)
    assert np.array_equal(codec.dequantize(kind, one.blocks, 512), one.rounded)
    error = np.linalg.norm(one.rounded - one.weights) / np.linalg.norm(one.weights)
    assert error < {"tq2_0": 0.5, "q3_k": 0.2}.get(kind, 0.1)


@pytest.mark.parametrize(
    ("part", "wrong", "says"),
    [
        ("weights", lambda array: array.astype(np.float64), "weights must be float32 .67, 512., not float64"),
        ("blocks", lambda array: array[:, :-1], "blocks must be uint8"),
        ("rounded", lambda array: array[::2], "rounded must be float32 .67, 512., not float32 .34, 512."),
        ("weights", lambda array: np.asfortranarray(array), "not contiguous"),
    ],
)
def test_arrays_that_native_code_would_read_beyond_are_refused(part, wrong, says):
    """By an exception that ``python -O`` keeps."""
    made = matrix("q4_0")
    with ThreadPoolExecutor(1) as pool, pytest.raises(ValueError, match=says):
        codec.quantize([replace(made, **{part: wrong(getattr(made, part))})], pool)


def test_blocks_of_another_width_are_refused():
    with pytest.raises(ValueError, match="are no blocks of 256 weights"):
        codec.dequantize("q4_0", matrix("q4_0").blocks, 256)
    with pytest.raises(ValueError, match="rows of 100 weights cannot be stored as q4_0"):
        codec.row_bytes("q4_0", 100)


def test_only_the_rows_that_were_asked_for_change():
    made = matrix("q4_0", part=slice(10, 20))
    with ThreadPoolExecutor(2) as pool:
        codec.quantize([made], pool)
    assert made.rounded[10:20].any(axis=1).all()
    assert not made.rounded[:10].any()
    assert not made.blocks[20:].any()


def test_ternary_values_are_a_grid_that_ggml_finds_again():
    """Its own scale, a block's largest magnitude, would lose most of the weights."""
    own, weights = matrix("q4_0"), matrix("tq2_0").weights
    grid = codec.ternary(weights)
    zeros = (grid == 0).mean()
    assert 0.3 < zeros < 0.5
    blocks = np.zeros((len(weights), codec.row_bytes("tq2_0", 512)), np.uint8)
    codec.quantize_chunk(GGML_TYPES["tq2_0"][0], grid.ctypes.data, blocks.ctypes.data, 0, *weights.shape, None)
    assert np.array_equal(codec.dequantize("tq2_0", blocks, 512), grid)
    assert not codec.ternary(np.zeros_like(own.weights)).any()
