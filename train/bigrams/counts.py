"""How often which token follows which.

Shape suffixes: V tokens of the vocabulary, P pairs that occur, B sequences of a batch, T positions.

Tested in tests/train/bigrams/test_counts.py.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


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
    parts, left = [], limit
    for batch_BT in batches_BT:
        ids = batch_BT.astype(np.int64)
        parts.append((ids[:, :-1] * vocab_size + ids[:, 1:]).ravel()[:left])
        left -= len(parts[-1])
        if left <= 0:
            break
    codes_P, count_P = np.unique(np.concatenate(parts) if parts else np.zeros(0, np.int64), return_counts=True)
    pairs = torch.from_numpy(codes_P)
    return Bigrams(
        first=pairs // vocab_size,
        second=pairs % vocab_size,
        count=torch.from_numpy(count_P).float(),
        vocab_size=vocab_size,
    )
