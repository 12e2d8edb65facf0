"""How the first part of a run reads its blocks: as bags of tokens, then in short sequences, then whole.

Shape suffixes: B blocks, T tokens of a block that the model reads, L of a short sequence.

Tested in tests/train/objective/test_early_part.py.
"""

from collections.abc import Iterator

import numpy as np

from slm.train.config import TrainConfig
from slm.train.objective.objective import Objective
from slm.train.objective.superposition import Superposition, joined


def of_step(
    train: TrainConfig, vocab_size: int, fraction_done: float, objective: Objective, batches: Iterator[np.ndarray]
) -> tuple[Objective, Iterator[np.ndarray]]:
    """What a step minimizes, and the blocks that it reads, when so much of the run is done; as given in the later part.

    A step has as many positions in every part.
    """
    if (bag := train.bag(fraction_done)) > 1:
        return Superposition(bag, sampled=train.sampled_softmax, vocab_size=vocab_size), joined(batches, bag)
    if (length := train.length(fraction_done)) < train.seq_len:
        return objective, cut(batches, length)
    return objective, batches


def cut(batches: Iterator[np.ndarray], length: int) -> Iterator[np.ndarray]:
    """Blocks [B, T + 1] as sequences [B T / L, L + 1]; each begins with the last target of the one before."""
    for block_BT1 in batches:
        starts = range(0, block_BT1.shape[1] - 1, length)
        yield np.concatenate([block_BT1[:, start : start + length + 1] for start in starts])
