"""Marks on the tokens of a block: which of them are scored, and where a conversation begins.

A block is int32, and a token's id needs fewer than 29 bits, so the marks are two further bits of the same number.
Blocks of plain text have none. So packing, worker processes and batches carry conversations as they carry text.

Shape suffixes: B blocks, T positions.
"""

import numpy as np

UNSCORED = 1 << 29
"""The loss does not count this token as a target."""
FIRST = 1 << 30
"""The first token of a conversation, which sees nothing before it."""
_ID = UNSCORED - 1


def mark(ids: np.ndarray, scored: np.ndarray) -> np.ndarray:
    """The tokens of one conversation with their marks, ``np.int32[n]``: ``scored`` says which ones the loss counts."""
    marked = np.asarray(ids, dtype=np.int32).copy()
    marked[~np.asarray(scored, dtype=bool)] |= UNSCORED
    marked[:1] |= FIRST
    return marked


def ids_of(block: np.ndarray) -> np.ndarray:
    """The tokens' ids, without marks."""
    return block & _ID


def is_scored(block: np.ndarray) -> np.ndarray:
    """Whether each token counts as a target."""
    return (block & UNSCORED) == 0


def conversation_starts(block_BT: np.ndarray) -> np.ndarray | None:
    """For every position the index of its conversation's first position within the block, ``np.int32[B, T]``.

    None where no conversation begins in any of the blocks: they are plain text.
    """
    first_BT = (block_BT & FIRST) != 0
    if not first_BT.any():
        return None
    positions = np.arange(block_BT.shape[1], dtype=np.int32)
    return np.maximum.accumulate(np.where(first_BT, positions, 0).astype(np.int32), axis=1)
