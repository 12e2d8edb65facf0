"""Calibrates an untied output head: rare words are drawn towards their frequency, and the whole head a little.

A head that read little text, or the same text often, is surer than it should be. It is wrong most about rare words.
A word that the text never has is a wrong answer at every position, so each step pushes it down further: measured were
24 nats for such a word, where a guess among all words costs 11. One that comes three times is learnt by heart.

So each row w of the head becomes t + a (w - t). The row t predicts the word's frequency in the text whatever the
context, and a = 1 - x0 - x1 / (1 + n) - x2 / (1 + sqrt(n)) for a word that the text has n times; a word that it never
has gets t itself. The loss is convex in x, so a few steps of Newton's method on held-out text find it. What comes out
is a matrix of the same shape: files and programs know nothing of it. Measured in docs/lab/recipe-choices.md.

Shape suffixes: N held-out positions, D model width, V vocabulary, J parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

_CHUNK = 256
"""Positions with logits in memory at once."""
_NEWTON_STEPS = 3
_RIDGE = 1e-2
"""Ridge of the regression on the states, as a share of their mean square."""
_PRIOR = 10.0
"""Precision of a normal distribution around 0 for each parameter, which counts where there are few positions."""
_LEAST_GAIN = 2e-4
"""Share of the loss that a calibration must win on the text it is fitted to. Three numbers win less by chance."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """A calibrated head, and what the calibration is worth on the held-out positions it was fitted to."""

    head: Tensor
    """[V, D]."""
    before: float
    """Nats per token."""
    after: float
    """Likewise."""
    tokens: int
    """Positions it is fitted to."""


@torch.no_grad()
def calibrate(
    head_VD: Tensor, states_ND: Tensor, targets_N: Tensor, counts_V: Tensor, readings: float = 1.0
) -> Calibration | None:
    """The calibrated head (f32); None where it would win nothing.

    ``states_ND``: final normed states of held-out text, with the tokens that follow, ``targets_N``. ``counts_V``: how
    often each word was a target of training, in all ``readings`` of the text. Rows beyond ``counts_V`` stay as they
    are.
    """
    if not counts_V.any() or len(targets_N) == 0:
        return None
    words = len(counts_V)
    head, padding = head_VD[:words].float(), head_VD[words:]
    frequency_VD = _frequency_rows(head, states_ND, log_frequencies(counts_V, readings))
    n_V = counts_V.float() / readings
    features_VJ = torch.stack([torch.ones_like(n_V), 1 / (1 + n_V), 1 / (1 + n_V.sqrt())], 1)
    # A word that the text never has is its frequency's row from the start: nothing moves it.
    start_VD = torch.where((counts_V == 0)[:, None], frequency_VD, head)
    difference_VD = start_VD - frequency_VD
    x_J = torch.zeros(features_VJ.shape[1], dtype=torch.float64)
    for _ in range(_NEWTON_STEPS):
        gradient_J, hessian_JJ = _derivatives(
            _mixed(start_VD, difference_VD, features_VJ, x_J), difference_VD, features_VJ, states_ND, targets_N
        )
        prior = _PRIOR / len(targets_N)
        x_J = x_J - torch.linalg.solve(hessian_JJ + prior * torch.eye(len(x_J)), gradient_J + prior * x_J)
    made_VD = torch.cat([_mixed(start_VD, difference_VD, features_VJ, x_J), padding.float()])
    before, after = (_loss(each, states_ND, targets_N) for each in (head_VD.float(), made_VD))
    if not after <= before * (1 - _LEAST_GAIN):
        return None
    return Calibration(head=made_VD, before=before, after=after, tokens=len(targets_N))


def log_frequencies(counts_V: Tensor, readings: float = 1.0) -> Tensor:
    """Natural logarithm of each word's share of the text. Words that it never has share what Good and Turing say of
    them: as much as all words that it has once."""
    total = counts_V.sum().item()
    once = int(((counts_V > 0) & (counts_V <= readings)).sum())
    never = int((counts_V == 0).sum())
    unseen = math.log((once + 1) * readings / total / max(1, never))
    return torch.where(counts_V > 0, (counts_V.clamp(min=1).double() / total).log(), unseen).float()


def _frequency_rows(head_VD: Tensor, states_ND: Tensor, log_frequencies_V: Tensor) -> Tensor:
    """Rows that fit each token's log frequency plus the normalizer of the head's softmax by their logits: least squares
    over the states."""
    normalizer_N = torch.cat([F.linear(chunk, head_VD).logsumexp(-1) for chunk in states_ND.split(_CHUNK)])
    states = states_ND.double()
    ridge = _RIDGE * len(states) * states.square().mean()
    gram_DD = states.T @ states + ridge * torch.eye(states.shape[1], dtype=torch.float64)
    wanted = torch.stack([normalizer_N.double(), torch.ones(len(states), dtype=torch.float64)], 1)
    normalizer_D, one_D = torch.linalg.solve(gram_DD, states.T @ wanted).float().T
    return normalizer_D + log_frequencies_V[:, None] * one_D


def _mixed(start_VD: Tensor, difference_VD: Tensor, features_VJ: Tensor, x_J: Tensor) -> Tensor:
    """The head for ``x_J``. No row goes beyond its frequency's, or away from it beyond itself."""
    taken_V = (features_VJ @ x_J.float()).clamp(0, 1)
    return start_VD - taken_V[:, None] * difference_VD


def _derivatives(
    head_VD: Tensor, difference_VD: Tensor, features_VJ: Tensor, states_ND: Tensor, targets_N: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradient [J] and Hessian [J, J] of the mean loss by x, f64. A logit's derivative is minus the feature times the
    difference's logit."""
    n_features = features_VJ.shape[1]
    pairs = [(i, j) for i in range(n_features) for j in range(i, n_features)]
    products_VP = torch.stack([features_VJ[:, i] * features_VJ[:, j] for i, j in pairs], 1)
    gradient_J = torch.zeros(n_features, dtype=torch.float64)
    hessian_JJ = torch.zeros(n_features, n_features, dtype=torch.float64)
    for states, targets in zip(states_ND.split(_CHUNK), targets_N.split(_CHUNK), strict=True):
        probabilities = F.linear(states, head_VD).softmax(-1)
        moved = F.linear(states, difference_VD)
        probabilities *= moved
        mean_NJ = (probabilities @ features_VJ).double()
        probabilities *= moved
        squares_P = (probabilities @ products_VP).double().sum(0)
        at_target_N1 = moved.gather(1, targets[:, None])
        gradient_J += ((at_target_N1 * features_VJ[targets]).double() - mean_NJ).sum(0)
        for (i, j), square in zip(pairs, squares_P, strict=True):
            value = square - (mean_NJ[:, i] * mean_NJ[:, j]).sum()
            hessian_JJ[i, j] += value
            if i != j:
                hessian_JJ[j, i] += value
    return gradient_J / len(targets_N), hessian_JJ / len(targets_N)


def _loss(head_VD: Tensor, states_ND: Tensor, targets_N: Tensor) -> float:
    total = sum(
        F.cross_entropy(F.linear(states, head_VD), targets, reduction="sum").item()
        for states, targets in zip(states_ND.split(_CHUNK), targets_N.split(_CHUNK), strict=True)
    )
    return total / len(targets_N)
