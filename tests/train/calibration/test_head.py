"""The calibration of a head, on states and words whose probabilities are known."""

import math

import pytest
import torch
import torch.nn.functional as F

from slm.train.calibration import head as module
from slm.train.calibration.head import calibrate, log_frequencies

WORDS, WIDTH, NEVER = 60, 16, 5


def world(scale: float = 1.0, n: int = 3_000) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A head that is ``scale`` times as sure as it should be, states, targets, and counts of training. The last five
    words never come; the head has pushed them far down."""
    chance = torch.Generator().manual_seed(3)
    states = torch.randn(n, WIDTH, generator=chance)
    states[:, 0] = 4.0  # what all states have in common
    true = torch.randn(WORDS, WIDTH, generator=chance) * 0.6
    true[:, 0] = torch.linspace(0, -1.5, WORDS)
    true[-NEVER:] = 0
    true[-NEVER:, 0] = -4
    targets = torch.multinomial(F.linear(states, true).softmax(-1), 1, generator=chance)[:, 0]
    counts = torch.bincount(targets, minlength=WORDS)
    counts[-NEVER:] = 0
    head = true * scale
    head[-NEVER:, 0] = -20
    return head, states, targets, counts


def test_a_head_that_is_too_sure_is_made_less_so():
    head, states, targets, counts = world(scale=1.6)
    found = calibrate(head, states[:1_000], targets[:1_000], counts)
    assert found is not None
    assert found.head.shape == head.shape
    assert found.tokens == 1_000
    assert found.after < found.before * 0.97
    # Other text of the same kind gains as much.
    before, after = (F.cross_entropy(F.linear(states[1_000:], each), targets[1_000:]) for each in (head, found.head))
    assert after < before * 0.97


def test_words_that_never_came_get_what_good_and_turing_give_them():
    head, states, targets, counts = world(scale=1.6)
    counts[50:53] = 1
    found = calibrate(head, states[:1_000], targets[:1_000], counts)
    assert found is not None
    before, after = (F.linear(states, each).log_softmax(-1)[:, -NEVER:].mean().item() for each in (head, found.head))
    expected = math.log(4 / counts.sum() / NEVER)
    assert before < -60
    assert after == pytest.approx(expected, abs=1.5)


def test_a_head_that_is_right_is_left_alone():
    head, states, targets, counts = world()
    head, counts = head[:-NEVER], counts[:-NEVER]
    known = targets < WORDS - NEVER
    assert calibrate(head, states[known], targets[known], counts) is None
    assert calibrate(head, states[:0], targets[:0], counts) is None
    assert calibrate(head, states[known], targets[known], torch.zeros_like(counts)) is None


def test_rows_without_a_word_stay():
    head, states, targets, counts = world(scale=1.6)
    padded = torch.cat([head, torch.full((4, WIDTH), -3.0)])
    found = calibrate(padded, states[:1_000], targets[:1_000], counts)
    assert found is not None
    assert torch.equal(found.head[WORDS:], padded[WORDS:])


def test_how_often_the_text_was_read_does_not_matter():
    head, states, targets, counts = world(scale=1.6)
    once, often = (calibrate(head, states[:500], targets[:500], counts * n, n) for n in (1, 7))
    assert once is not None
    assert often is not None
    torch.testing.assert_close(often.head, once.head)


def test_frequencies():
    found = log_frequencies(torch.tensor([6, 1, 1, 0, 0])).exp()
    assert found.tolist() == pytest.approx([6 / 8, 1 / 8, 1 / 8, 3 / 8 / 2, 3 / 8 / 2])
    twice = log_frequencies(torch.tensor([12, 2, 2, 0, 0]), 2).exp()
    assert twice.tolist() == pytest.approx(found.tolist())


def test_the_derivatives_are_those_of_the_loss():
    head, states, targets, counts = world(scale=1.3, n=300)
    difference = head - torch.randn(head.shape, generator=torch.Generator().manual_seed(1)) * 0.1
    features = torch.stack([torch.ones(WORDS), 1 / (1 + counts.float())], 1)

    def loss(x):
        mixed = head.double() - (features.double() @ x)[:, None] * difference.double()
        return F.cross_entropy(F.linear(states.double(), mixed), targets)

    zero = torch.zeros(2, dtype=torch.float64)
    gradient, hessian = module._derivatives(head, difference, features, states, targets)
    torch.testing.assert_close(gradient, torch.autograd.functional.jacobian(loss, zero), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(hessian, torch.autograd.functional.hessian(loss, zero), rtol=1e-4, atol=1e-4)
