"""Products in integers of 16 and of 8 bits: as exact as their rounding allows, whatever the values are."""

import pytest
import torch

from slm.kernels.native import VARIANTS, Kernels
from tests.helpers.kernels import NAMES, kernels_for_test

DEPTH = 512
"""Values that share a scale, at most."""


@pytest.fixture(params=[name for name in NAMES if VARIANTS[name].bits < 32])
def kernels(request) -> Kernels:
    return kernels_for_test(request.param)


def odd_values(rows: int, columns: int, seed: int) -> torch.Tensor:
    """Rows of very different sizes, some with one large value, one of equal values, one of zeros."""
    chance = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, generator=chance) * 10 ** torch.randint(-9, 9, (rows, 1), generator=chance)
    x[::3, 5] *= 1000
    x[1], x[2] = 3.0, 0.0
    return x


def bound(kernels: Kernels, a_NK: torch.Tensor, b_MK: torch.Tensor) -> torch.Tensor:
    """How far a_NK b_MK^T may be from the exact products: each value is off by half of 1 / 32767 of its block's length,
    or half of 1 / 127 of its block's largest value, and by Cauchy and Schwarz so are the sums; f32 adds a little."""
    whole = torch.zeros(len(a_NK), len(b_MK), dtype=torch.float64)
    for a_NB, b_MB in zip(a_NK.double().split(DEPTH, 1), b_MK.double().split(DEPTH, 1), strict=True):
        a_N, b_M = a_NB.norm(dim=1)[:, None], b_MB.norm(dim=1)[None, :]
        if VARIANTS[kernels.name].bits == 16:
            off_a_N, off_b_M = (DEPTH**0.5 / 2 / 32767 * each for each in (a_N, b_M))
        else:
            off_a_N, off_b_M = (each.shape[1] ** 0.5 / 2 / 127 * each.abs().amax(1) for each in (a_NB, b_MB))
            off_a_N, off_b_M = off_a_N[:, None], off_b_M[None, :]
        whole += off_a_N * b_M + a_N * off_b_M + off_a_N * off_b_M
    return 1.1 * whole + 1e-30


def forward(kernels: Kernels, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    (m, k), n = x.shape, len(weight)
    packed, out = torch.empty(n * k), torch.full((m, n), 7.0)
    kernels.slm_pack_forward(weight, n, k, packed, 0)
    kernels.slm_linear(x, m, k, packed, n, None, out)
    return out


def backward(kernels: Kernels, dy: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    """dy W by the head's backward pass, W being packed in parts."""
    (m, n), d = dy.shape, weights[0].shape[1]
    packed, out, first = torch.empty(n * d), torch.full((m, d), 7.0), 0
    for weight in weights:
        kernels.slm_pack_backward(weight, len(weight), d, packed, first, n)
        first += len(weight)
    kernels.slm_head_backward(dy, m, n, packed, d, out)
    return out


@pytest.mark.parametrize("panels", [1, 7, 16, 17, 32, 33, 100])
def test_products_are_as_exact_as_the_rounding(kernels, panels):
    width = kernels.slm_width_multiple()
    depth = panels * width
    x, weight = odd_values(79, depth, 1), odd_values(3 * width, depth, 2)
    exact = x.double() @ weight.double().T
    assert ((forward(kernels, x, weight) - exact).abs() <= bound(kernels, x, weight)).all()
    columns = odd_values(32, depth, 3).T.contiguous()
    parts = list(columns.split([width, depth - width] if depth > width else [width]))
    exact = x.double() @ columns.double()
    assert ((backward(kernels, x, parts) - exact).abs() <= bound(kernels, x, columns.T)).all()


@pytest.mark.parametrize("positions", [1, 2, 3, 4, 5, 33, 511, 513, 1100])
@pytest.mark.parametrize("outputs", [16, 50, 112, 160])
def test_weight_gradients_are_as_exact_as_the_rounding(kernels, positions, outputs):
    dy, x = (
        odd_values(outputs, positions + 6, 4).T[6:].contiguous(),
        odd_values(32, positions + 6, 5).T[6:].contiguous(),
    )
    grad = torch.full((outputs, 32), 0.5)
    scratch = torch.full((kernels.slm_weight_gradient_scratch(positions, outputs, 32) + 64,), 9.0)
    kernels.slm_weight_gradient(dy, outputs, x, 32, positions, outputs, 32, grad, 1, scratch)
    exact = dy.double().T @ x.double()
    assert ((grad - 0.5 - exact).abs() <= bound(kernels, dy.T, x.T) + 1e-6 * exact.abs() + 1e-7).all()
    assert (scratch[-64:] == 9).all(), "nothing is written beyond the scratch memory"


def test_what_is_not_finite_stays_in_its_row(kernels):
    x, weight = torch.randn(13, 64), torch.randn(32, 64)
    right = forward(kernels, x, weight)
    for value in (float("nan"), float("inf")):
        broken = x.clone()
        broken[7, 9] = value
        out = forward(kernels, broken, weight)
        assert not out[7].isfinite().any()
        assert torch.equal(out[:7], right[:7])
        assert torch.equal(out[8:], right[8:])


def test_the_largest_sums_fit(kernels):
    """All values of a row and a column alike, with one sign: no sum of products is larger."""
    x, weight = torch.full((7, DEPTH), -2.5), torch.full((32, DEPTH), 4.0)
    assert torch.allclose(forward(kernels, x, weight), torch.full((7, 32), -2.5 * 4 * DEPTH), rtol=1e-3)
    alone = torch.zeros(7, DEPTH)
    alone[:, 100] = 1.0
    assert torch.allclose(forward(kernels, alone, weight * 0 + alone[:1]), torch.ones(7, 32), rtol=1e-4)
