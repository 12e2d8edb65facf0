"""A micro-batch as the model takes it, and its parts that see nothing of each other: conversations, documents, or whole
sequences.

Shape suffixes: B sequences of a micro-batch, T positions.

Tested in tests/train/test_scored_tokens.py, tests/train/objective/test_teacher.py.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from slm.data.stream import marks
from slm.data.stream.packing import document_starts
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


@dataclass(frozen=True)
class Segment:
    """One part."""

    ids: np.ndarray
    """int32: its tokens."""
    begin: int
    """Index of its first token, counted through the whole micro-batch."""
    scored: np.ndarray
    """int64: which of its positions predict a scored target."""


def segments(batch: Batch, eot_id: int | None) -> list[Segment]:
    """The parts in which something is scored. ``eot_id``: what ends documents that do not see each other."""
    ids_BT, starts = batch.ids.numpy(), batch.starts
    if starts is not None:
        starts_BT = starts.numpy()
    else:
        starts_BT = np.zeros(ids_BT.shape, np.int32) if eot_id is None else document_starts(ids_BT, eot_id)
    scored_BT = batch.targets.numpy() != IGNORED
    T = ids_BT.shape[1]
    found = []
    for row, starts_T in enumerate(starts_BT):
        cuts = [*np.unique(starts_T).tolist(), T]
        for begin, end in pairwise(cuts):
            scored = np.flatnonzero(scored_BT[row, begin:end])
            if len(scored):
                found.append(Segment(ids_BT[row, begin:end].astype(np.int32), row * T + begin, scored))
    return found
