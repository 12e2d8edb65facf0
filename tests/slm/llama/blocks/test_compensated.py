"""Compensated rounding of one matrix against llama.cpp's own, on inputs whose columns are correlated."""

import gguf
import numpy as np
import pytest
import torch

from slm.llama.blocks.compensated import output_error, round_compensated
from slm.llama.blocks.grids import KINDS
from slm.llama.blocks.rounding import dequantize_rows, quantize_rows
from slm.llama.gguf_check import GGML_TYPES

WIDTH = 512


@pytest.fixture(scope="module")
def layer():
    """Weights [O, D], inputs [N, D] with correlated columns of very different sizes, and their second moments."""
    rng = np.random.default_rng(0)
    mixing = rng.normal(0, 1, (WIDTH // 4, WIDTH)) * WIDTH**-0.5
    sizes = np.exp(rng.normal(0, 0.7, WIDTH))
    x_ND = (rng.normal(0, 1, (2_000, WIDTH // 4)) @ mixing + 0.15 * rng.normal(0, 1, (2_000, WIDTH))) * sizes
    x_ND = x_ND.astype(np.float32)
    weight_OD = rng.normal(0, 0.05, (48, WIDTH)).astype(np.float32)
    return weight_OD, x_ND, torch.from_numpy(x_ND.T @ x_ND)


@pytest.mark.parametrize("kind", KINDS)
def test_the_output_error_falls(layer, kind):
    """On the inputs themselves, computed directly; blocks decode alike in gguf's reader."""
    weight_OD, x_ND, moments_DD = layer
    importance_D = np.square(x_ND).mean(axis=0)
    nearest = quantize_rows(weight_OD, kind, importance_D)
    compensated = round_compensated(weight_OD, moments_DD, kind)
    errors = []
    for packed in (nearest, compensated):
        values_OD = dequantize_rows(packed, kind, WIDTH)
        qtype = gguf.GGMLQuantizationType(GGML_TYPES[kind][0])
        assert np.array_equal(gguf.quants.dequantize(packed, qtype), values_OD)
        errors.append(float(np.square(x_ND @ (values_OD - weight_OD).T).sum()))
        assert output_error(weight_OD, packed, kind, moments_DD) == pytest.approx(errors[-1], rel=1e-3)
    assert errors[1] < 0.7 * errors[0], errors


def test_independent_inputs_leave_nothing_to_make_up_for(layer):
    """With H a multiple of the identity, every column is rounded to the nearest value of its block's grid."""
    weight_OD = layer[0]
    compensated = round_compensated(weight_OD, 3 * torch.eye(WIDTH), "q4_0", importance=False)
    nearest = quantize_rows(weight_OD, "q4_0")
    values, expected = (dequantize_rows(each, "q4_0", WIDTH) for each in (compensated, nearest))
    # ggml's reference rounds halves up after adding 8.5, so single weights in the middle of two values may differ.
    assert np.mean(values != expected) < 0.01
    assert np.abs(values - weight_OD).mean() <= np.abs(expected - weight_OD).mean() * 1.001


def test_inputs_that_are_always_zero(layer):
    """Their columns have no influence on the others, and there is no division by zero."""
    weight_OD, _, moments_DD = layer
    dead_DD = moments_DD.clone()
    dead_DD[10:50] = 0
    dead_DD[:, 10:50] = 0
    values_OD = dequantize_rows(round_compensated(weight_OD, dead_DD, "q4_k"), "q4_k", WIDTH)
    assert np.isfinite(values_OD).all()
    nothing_OD = dequantize_rows(round_compensated(weight_OD, torch.zeros(WIDTH, WIDTH), "q4_0"), "q4_0", WIDTH)
    assert np.isfinite(nothing_OD).all()
