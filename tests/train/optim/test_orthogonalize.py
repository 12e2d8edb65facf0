"""Newton-Schulz against the singular value decomposition."""

import pytest
import torch

from slm.train.optim.muon import orthogonalize


def matrices(*shape: int, smallest: float = 0.05) -> torch.Tensor:
    """Random matrices with singular values from ``smallest`` to 1."""
    generator = torch.Generator().manual_seed(3)
    u, s, vh = torch.linalg.svd(torch.randn(*shape, generator=generator), full_matrices=False)
    values = torch.logspace(torch.tensor(smallest).log10().item(), 0, s.shape[-1])
    return u @ torch.diag(values) @ vh


@pytest.mark.parametrize("shape", [(3, 64, 64), (2, 48, 96), (2, 96, 48), (1, 1, 32), (1, 32, 1)])
def test_five_steps_come_near_u_v_transposed(shape):
    g = 1e-3 * matrices(*shape)
    u, _, vh = torch.linalg.svd(g, full_matrices=False)
    found = orthogonalize(g, 5)
    assert found.shape == g.shape
    values = torch.linalg.svdvals(found)
    assert values.min() > 0.7
    assert values.max() < 1.3
    # The singular vectors are G's own, so what is left is the distance of the values from 1.
    distance = (found - u @ vh).norm() / (u @ vh).norm()
    assert distance < 0.15
    torch.testing.assert_close(
        u.mT @ found @ vh.mT, torch.diag_embed((u.mT @ found @ vh.mT).diagonal(0, -2, -1)), atol=2e-3, rtol=0
    )


def test_more_steps_are_nearer():
    g = matrices(1, 64, 128, smallest=0.01)
    distances = [(torch.linalg.svdvals(orthogonalize(g, steps)) - 1).abs().mean().item() for steps in range(1, 6)]
    assert distances == sorted(distances, reverse=True)
    assert distances[4] < 0.1 < distances[1]


def test_each_matrix_is_on_its_own_and_zeros_stay():
    g = matrices(3, 32, 48)
    g[1] = 0
    together = orthogonalize(g, 5)
    assert not together[1].any()
    torch.testing.assert_close(together[2], orthogonalize(g[2:], 5)[0], atol=1e-5, rtol=1e-5)


def test_bf16_is_near_f32():
    g = matrices(1, 64, 64)
    exact, rough = orthogonalize(g, 5), orthogonalize(g, 5, torch.bfloat16)
    assert rough.dtype == torch.bfloat16
    assert (rough.float() - exact).norm() / exact.norm() < 0.1
