"""How often which token follows which.

Shape suffixes: V tokens of the vocabulary, P pairs that occur, B sequences of a batch, T positions.

Tested in tests/train/bigrams/test_counts.py.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

AT_ONCE = 4_000_000
"""Pairs that are kept one by one before they are counted."""


@dataclass(frozen=True, kw_only=True)
class Bigrams:
    """Pairs of neighbours, each one once, in the order of their first token and then of their second."""

    first: Tensor
    """int64 [P]."""
    second: Tensor
    """int64 [P]."""
    count: Tensor
    """f32 [P]."""
    vocab_size: int

    @property
    def tokens(self) -> int:
        """How many pairs were counted."""
        return round(self.count.sum(dtype=torch.float64).item())

    def occurrences(self) -> tuple[Tensor, Tensor]:
        """How often each token is the first of a pair, and how often the second: f32 [V] each."""
        zeros_V = torch.zeros(self.vocab_size)
        return zeros_V.index_add(0, self.first, self.count), zeros_V.index_add(0, self.second, self.count)


def count_bigrams(batches_BT: Iterable[np.ndarray], vocab_size: int, limit: int) -> Bigrams:
    """Count the pairs in the rows of integer ``batches_BT`` until there are ``limit`` of them, or the text ends."""
    codes_P, count_P = np.zeros(0, np.int64), np.zeros(0, np.int64)
    waiting: list[np.ndarray] = []
    left, kept = limit, 0
    for batch_BT in batches_BT:
        ids = batch_BT.astype(np.int64)
        waiting.append((ids[:, :-1] * vocab_size + ids[:, 1:]).ravel()[:left])
        left -= len(waiting[-1])
        kept += len(waiting[-1])
        if kept >= AT_ONCE:
            codes_P, count_P = _added(codes_P, count_P, waiting)
            waiting, kept = [], 0
        if left <= 0:
            break
    codes_P, count_P = _added(codes_P, count_P, waiting)
    pairs = torch.from_numpy(codes_P)
    return Bigrams(
        first=pairs // vocab_size,
        second=pairs % vocab_size,
        count=torch.from_numpy(count_P).float(),
        vocab_size=vocab_size,
    )


def _added(codes_P: np.ndarray, count_P: np.ndarray, more: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The sorted pairs and their counts with those of ``more``."""
    if not more:
        return codes_P, count_P
    new_P, times_P = np.unique(np.concatenate(more), return_counts=True)
    codes = np.concatenate([codes_P, new_P])
    order = np.argsort(codes, kind="stable")
    codes = codes[order]
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    return codes[starts], np.add.reduceat(np.concatenate([count_P, times_P])[order], starts)
