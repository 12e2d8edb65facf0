"""The factors equal those computed from the dense matrix that the docstring names."""

import pytest
import torch
from torch.testing import assert_close

from slm.train.bigrams.counts import Bigrams
from slm.train.bigrams.low_rank import SMOOTHING, UNSEEN, low_rank

V = 120


@pytest.fixture(scope="module")
def bigrams() -> Bigrams:
    """Pairs of which the last tokens are never a part."""
    generator = torch.Generator().manual_seed(1)
    likes_VK = torch.randn(V, 6, generator=generator)
    chance = torch.softmax(2 * likes_VK @ likes_VK.T + torch.linspace(3, -3, V), 1)
    count_VV = torch.distributions.Poisson(400 * chance)
    torch.manual_seed(1)
    count_VV = count_VV.sample()
    count_VV[-3:], count_VV[:, -3:] = 0, 0
    first, second = count_VV.nonzero(as_tuple=True)
    return Bigrams(first=first, second=second, count=count_VV[first, second], vocab_size=V)


def dense(bigrams: Bigrams) -> tuple[torch.Tensor, torch.Tensor]:
    """log(p(next | token) / p(next)) [V, V] and p(next) [V], in f64."""
    count_VV = torch.zeros(V, V, dtype=torch.float64)
    count_VV[bigrams.first, bigrams.second] = bigrams.count.double()
    frequency_V = (count_VV.sum(0) + UNSEEN) / (count_VV.sum() + UNSEEN * V)
    smoothed_VV = (count_VV + SMOOTHING * frequency_V) / (count_VV.sum(1, keepdim=True) + SMOOTHING)
    assert_close(smoothed_VV.sum(1), torch.ones(V, dtype=torch.float64), atol=0.02, rtol=0)
    return (smoothed_VV / frequency_V).log(), frequency_V


def test_all_factors_give_the_matrix_itself(bigrams):
    found = low_rank(bigrams, V, torch.Generator().manual_seed(2))
    matrix_VV, frequency_V = dense(bigrams)
    weight_VV = (frequency_V[:, None] * frequency_V).sqrt()
    assert_close((found.left @ found.right.T).double() * weight_VV, matrix_VV * weight_VV, atol=1e-6, rtol=1e-4)
    assert_close(found.log_frequency.double(), frequency_V.log(), atol=1e-5, rtol=1e-5)


def test_some_factors_are_as_near_as_any_can_be(bigrams):
    matrix_VV, frequency_V = dense(bigrams)
    weight_V = frequency_V.sqrt()
    weighted_VV = matrix_VV * weight_V[:, None] * weight_V
    found = low_rank(bigrams, 12, torch.Generator().manual_seed(2))
    assert found.left.shape == found.right.shape == (V, 12)
    error_VV = (found.left @ found.right.T).double() * weight_V[:, None] * weight_V - weighted_VV
    least = torch.linalg.svdvals(weighted_VV)[12:].square().sum().sqrt()
    assert error_VV.norm() == pytest.approx(least.item(), rel=0.01)


def test_the_same_seed_gives_the_same_factors(bigrams):
    first, again = (low_rank(bigrams, 12, torch.Generator().manual_seed(2)) for _ in range(2))
    assert_close(first.left, again.left, atol=0, rtol=0)
    assert_close(first.right, again.right, atol=0, rtol=0)
