"""The parts of a micro-batch that see nothing of each other: conversations, documents, or whole sequences.

Shape suffixes: B sequences of a micro-batch, T positions.

Tested in tests/train/objective/test_teacher.py.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from slm.data.stream.packing import document_starts
from slm.model.cross_entropy import IGNORED
from slm.train.objective.batch import Batch


@dataclass(frozen=True)
class Segment:
    """One part."""

    ids: np.ndarray
    """int32: its tokens."""
    begin: int
    """Of its first token, counted through the whole micro-batch."""
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
