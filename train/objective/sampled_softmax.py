"""Sampled softmax: a training step computes the logits of some words of the vocabulary instead of all (Jean et al.
2015, arXiv 1412.2007).

Those are every target of the micro-batch, and others drawn at random, frequent ones more often. A drawn word stands for
as many as its chance says. So the sum over the vocabulary has its expected value, targets get their exact gradient but
for the noise of that sum, and the head costs what that number of tokens costs, however large the vocabulary is.
Validation, checkpoints and files know nothing of it.

The draw depends on the targets alone: a resumed run makes the same, and no state has to be kept.

Shape suffixes: R positions, V tokens for which logits are computed.

Tested in tests/train/objective/test_sampled_softmax.py.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from slm.model.cross_entropy import IGNORED
from slm.model.head_loss import HeadPass
from slm.train.backend import Backend, count_scored
from slm.train.objective.batch import Batch
from slm.train.objective.objective import CROSS_ENTROPY, Objective, Part

LEAST_DRAWN = 0.25
"""Smallest share of ``train.sampled_softmax`` for tokens that are no targets. If targets leave fewer, more logits are
computed."""
MULTIPLE = 256
"""The number of words is a multiple of this, so that the kernels' panels are full and few sizes of buffers come up."""
FIRST, POWER = 200.0, -0.75
"""A token is sampled with probability proportional to (id + FIRST) ** POWER, because a BPE's ids are roughly ordered
by frequency. Uniform sampling estimates the softmax's denominator worse and costs 1.3 % in bits per byte
(docs/results/recipe.md)."""


@dataclass(frozen=True)
class Words:
    """The tokens for which a micro-batch computes logits."""

    ids: Tensor
    """int64 [V]: the targets, then those that were drawn."""
    n_targets: int
    stands_for: Tensor
    """f32 [V - n_targets]: how many words that are no targets each drawn one stands for, itself included."""

    def places(self, targets: Tensor) -> Tensor:
        """Where ``targets`` are in ``ids``; -100 where they are not scored."""
        found = torch.searchsorted(self.ids[: self.n_targets], targets.clamp(min=0)).clamp(max=self.n_targets - 1)
        return torch.where(targets == IGNORED, IGNORED, found)

    @property
    def offsets(self) -> Tensor:
        """What each word's logit has to grow by, f32 [V], for a softmax among these words to estimate that of the
        whole vocabulary: the logarithm of how many words it stands for."""
        return torch.cat([torch.zeros(self.n_targets), self.stands_for.log()])


def draw(targets: Tensor, vocab_size: int, count: int) -> Words | None:
    """``count`` words or a little more for ``targets`` (any shape, -100: not scored); None: all of the vocabulary, as
    for a ``count`` of 0."""
    if not count:
        return None
    wanted = np.unique(targets.numpy())
    wanted = wanted[wanted >= 0]
    size = -(-max(count, len(wanted) + round(LEAST_DRAWN * count)) // MULTIPLE) * MULTIPLE
    if not len(wanted) or size >= vocab_size:
        return None
    n_drawn = size - len(wanted)
    chances = _chances(wanted, vocab_size, n_drawn)
    chance = np.random.default_rng(zlib.crc32(targets.numpy().tobytes()))
    # With 24 bits: a longer fraction just below 1 would be rounded to 1 next to the comb's last whole number.
    drawn = _systematic(chances, n_drawn, float(chance.random(dtype=np.float32)))
    ids = torch.from_numpy(np.concatenate([wanted, drawn]))
    return Words(ids, len(wanted), torch.from_numpy((1 / chances[drawn]).astype(np.float32)))


def _chances(wanted: np.ndarray, vocab_size: int, count: int) -> np.ndarray:
    """How likely each word is to be drawn, f64 [vocabulary]: 0 for ``wanted`` ones, ``count`` in all."""
    weights = _weights(vocab_size).copy()
    weights[wanted] = 0
    chances = weights * (count / weights.sum())
    while chances.max() > 1:  # what is certain leaves the rest to the others
        certain = chances >= 1
        rest = weights * ~certain
        chances = np.where(certain, 1.0, rest * ((count - certain.sum()) / rest.sum()))
    return chances


@lru_cache(maxsize=4)
def _weights(vocab_size: int) -> np.ndarray:
    return (np.arange(vocab_size) + FIRST) ** POWER


def _systematic(chances: np.ndarray, count: int, start: float) -> np.ndarray:
    """``count`` words in order, each with its chance: those that a comb of distance 1, shifted by ``start`` in [0, 1),
    meets on the words' chances laid end to end (systematic sampling, Madow 1949)."""
    ends = np.cumsum(chances)
    ends *= count / ends[-1]
    return np.searchsorted(ends, start + np.arange(count), side="right")


class SampledSoftmax(Objective):
    """The cross-entropy of every scored target, nats, estimated from ``count`` words of ``vocab_size``."""

    def __init__(self, count: int, vocab_size: int) -> None:
        self._count, self._vocab_size = count, vocab_size

    def gradients(self, backend: Backend, batch: Batch, scale: float) -> Part:
        words = draw(batch.targets, self._vocab_size, self._count)
        if words is None:
            return super().gradients(backend, batch, scale)
        head = _Estimate(words, words.places(batch.targets), scale)
        backend.head_gradients(batch.ids, head.places, head, batch.starts)
        return Part(head.nats, count_scored(batch.targets))


def plain_text(count: int, vocab_size: int) -> Objective:
    """The objective of text: sampled softmax with ``count`` words of ``vocab_size``, or all logits where it is 0."""
    return SampledSoftmax(count, vocab_size) if count else CROSS_ENTROPY


class _Estimate:
    """The loss at the head; ``nats`` is, after the pass, the sum of the estimated cross-entropies."""

    def __init__(self, words: Words, places: Tensor, scale: float) -> None:
        self._words, self.places, self._scale = words, places, scale
        self.nats = 0.0

    def over_logits(self, losses: Callable[[], Tensor]) -> HeadPass:
        words = self._words
        return HeadPass(self._scale, soften=self._note, words=words.ids, offsets=words.offsets)

    def _note(self, _: Tensor, losses_R: Tensor, rows: slice) -> None:
        self.nats += losses_R.sum(dtype=torch.float64).item()
