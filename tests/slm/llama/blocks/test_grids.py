"""Blocks taken apart and put together again: ggml's and gguf's own readers are the reference."""

import gguf
import numpy as np
import pytest

from slm.llama.blocks.grids import KINDS, Grid, levels, read_codes, read_grid, write_codes
from slm.llama.blocks.rounding import dequantize_rows, quantize_rows
from slm.llama.gguf_check import GGML_TYPES


def some_blocks(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Blocks [N, bytes] as ggml makes them, one of them of zeros, and their values [N, weights]."""
    width = GGML_TYPES[kind][1]
    rows_NW = np.random.default_rng(3).normal(0, 0.05, (64, width)).astype(np.float32)
    rows_NW[::3] += 0.04  # K-quants' minima are then in use
    rows_NW[5] = 0
    packed = quantize_rows(rows_NW, kind)
    return packed, dequantize_rows(packed, kind, width)


def values(grid: Grid, codes_N: np.ndarray, column: int) -> np.ndarray:
    """float32 [N]: what the codes of one weight of each block stand for."""
    return np.asarray(grid.scale[:, column] * levels(grid.kind)[codes_N] - grid.offset[:, column], np.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_scales_and_codes_give_the_values(kind):
    packed, values_NW = some_blocks(kind)
    grid, codes_NW = read_grid(kind, packed), read_codes(kind, packed)
    order_W = np.random.default_rng(6).permutation(values_NW.shape[1])
    columns = grid.columns(order_W)
    for place, column in enumerate(order_W):
        assert np.array_equal(values(grid, codes_NW[:, column], column), values_NW[:, column])
        nearest_N, nearest_values_N = columns.nearest(values_NW[:, column], place)
        assert np.array_equal(values(grid, nearest_N, column), values_NW[:, column])
        assert np.array_equal(nearest_values_N, values_NW[:, column])


@pytest.mark.parametrize("kind", KINDS)
def test_any_codes_can_be_written(kind):
    """Bit for bit in ggml's reader and in gguf's; the scales stay."""
    packed, _ = some_blocks(kind)
    grid = read_grid(kind, packed)
    n, width = len(packed), GGML_TYPES[kind][1]
    codes_NW = np.random.default_rng(4).integers(0, len(levels(kind)), (n, width)).astype(np.uint8)
    changed = packed.copy()
    write_codes(kind, changed, codes_NW)
    assert np.array_equal(read_codes(kind, changed), codes_NW)
    expected = np.stack([values(grid, codes_NW[:, column], column) for column in range(width)], axis=1)
    assert np.array_equal(dequantize_rows(changed, kind, width), expected)
    qtype = gguf.GGMLQuantizationType(GGML_TYPES[kind][0])
    assert np.array_equal(gguf.quants.dequantize(changed, qtype), expected)
    write_codes(kind, changed, read_codes(kind, packed))
    assert np.array_equal(changed, packed)


@pytest.mark.parametrize("kind", KINDS)
def test_the_nearest_value_is_chosen(kind):
    packed, _ = some_blocks(kind)
    grid = read_grid(kind, packed)
    weights_N = np.random.default_rng(5).normal(0, 0.08, len(packed)).astype(np.float32)
    columns = grid.columns(np.arange(GGML_TYPES[kind][1]))
    for column in (0, 7, 31):
        chosen_N = np.abs(values(grid, columns.nearest(weights_N, column)[0], column) - weights_N)
        every = np.stack(
            [values(grid, np.full(len(packed), code, np.uint8), column) for code in range(len(levels(kind)))]
        )
        assert np.allclose(chosen_N, np.abs(every - weights_N).min(axis=0), atol=1e-7)
