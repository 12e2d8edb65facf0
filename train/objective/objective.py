"""What a step minimizes. Here: the mean cross-entropy of the scored targets.

Shape suffixes: B sequences of a micro-batch, T positions.

Tested in tests/train/test_step.py, tests/train/objective/test_preference.py.
"""

from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from slm.model.cross_entropy import IGNORED
from slm.train.backend import Backend, count_scored
from slm.train.objective.batch import Batch, split


@dataclass(frozen=True)
class Part:
    """A micro-batch's share of a step or of a validation: sums, which are divided by the count of all of them."""

    loss: float
    """Summed over what is counted."""
    count: int
    """Scored targets, or pairs."""
    sums: dict[str, float] = field(default_factory=dict)
    """Further figures, by their names in the metrics."""


class Objective:
    """The cross-entropy of every scored target, nats."""

    figures: tuple[str, ...] = ()
    """The names of what ``Part.sums`` holds in training."""
    held_out_figures: tuple[str, ...] = ()
    """And of held-out text."""

    def split(self, block_BT1: np.ndarray) -> Batch:
        """The micro-batch of blocks [B, T + 1]."""
        return split(block_BT1)

    def gradients(self, backend: Backend, batch: Batch, scale: float) -> Part:
        """The micro-batch's sums; ``scale`` times the gradient of its summed loss is added to the ``.grad``s."""
        loss = backend.gradients(batch.ids, batch.targets, scale, batch.starts)
        return Part(loss, count_scored(batch.targets))

    def held_out(self, batch: Batch, losses_BT: Tensor) -> Part:
        """The sums of held-out text, of which ``losses_BT`` are the cross-entropies."""
        scored_BT = batch.targets != IGNORED
        return Part(losses_BT[scored_BT].double().sum().item(), int(scored_BT.sum()))

    def text(self, batch: Batch) -> Tensor:
        """The targets that count as bits, like ``batch.targets``: what a model should write."""
        return batch.targets


CROSS_ENTROPY = Objective()
