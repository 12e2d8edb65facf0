"""A micro-batch as the model takes it.

Shape suffixes: B sequences of a micro-batch, T positions.

Tested in tests/train/test_scored_tokens.py.
"""

from typing import NamedTuple

import numpy as np
import torch

from slm.data.stream import marks
from slm.model.cross_entropy import IGNORED


class Batch(NamedTuple):
    """A micro-batch as the model takes it."""

    ids: torch.Tensor
    """int64 [B, T], or bags of S tokens [B, T, S]."""
    targets: torch.Tensor
    """int64 like ``ids``; -100 where a target is not scored."""
    starts: torch.Tensor | None
    """int32 [B, T]: where each position's conversation begins; None for plain text."""

    @property
    def positions(self) -> int:
        """B T: what the model computes."""
        return self.ids.shape[0] * self.ids.shape[1]


def split(block_BT1: np.ndarray) -> Batch:
    """Inputs, targets and the beginnings of conversations of blocks [B, T + 1]."""
    ids_BT1 = marks.ids_of(block_BT1).astype(np.int64)
    targets_BT = np.where(marks.is_scored(block_BT1[:, 1:]), ids_BT1[:, 1:], IGNORED)
    starts_BT = marks.conversation_starts(block_BT1[:, :-1])
    return Batch(
        torch.from_numpy(ids_BT1)[:, :-1],
        torch.from_numpy(targets_BT),
        None if starts_BT is None else torch.from_numpy(starts_BT),
    )
