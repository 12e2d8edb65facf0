"""A low-rank model of bigrams: log p(next | token) is about log p(next) + left[token] . right[next].

The matrix of log(p(next | token) / p(next)), smoothed, is factorized by a truncated singular value decomposition, as
Levy and Goldberg (2014, "Neural Word Embedding as Implicit Matrix Factorization") do, with rows and columns weighted by
the root of their frequency. Pairs that never occur all have the same value within a row, so the matrix is a sparse one
plus one of rank 1, and neither time nor memory grows with the square of the vocabulary. The decomposition follows
Halko, Martinsson and Tropp (2011, arXiv 0909.4061): a random subspace, improved by products with the matrix.

Shape suffixes: V tokens of the vocabulary, P pairs that occur, K rank, Q columns of the subspace.

Tested in tests/train/bigrams/test_low_rank.py.
"""

from dataclasses import dataclass
from warnings import catch_warnings, simplefilter

import torch
from torch import Tensor

from slm.train.bigrams.counts import Bigrams

SMOOTHING = 150.0
"""Add-k smoothing: k extra occurrences of each token, with successors distributed by unigram frequency."""
UNSEEN = 0.5
"""Occurrences added to each token's count, so that unseen tokens have a frequency above zero."""
MORE_COLUMNS, ROUNDS = 16, 3
"""Columns of the random subspace beyond the rank, and how often both sides are multiplied."""


@dataclass(frozen=True, kw_only=True)
class LowRank:
    """log p(next | token) is about ``log_frequency[next] + left[token] . right[next]``."""

    left: Tensor
    """f32 [V, K]."""
    right: Tensor
    """f32 [V, K]."""
    log_frequency: Tensor
    """f32 [V]: of each token in the text, nats."""


def low_rank(bigrams: Bigrams, rank: int, generator: torch.Generator) -> LowRank:
    """The factors of ``rank``, which is at most V. Tokens that never occur have none worth the name."""
    matrix = _Weighted(bigrams)
    V = bigrams.vocab_size
    basis_VQ = torch.randn(V, min(V, rank + MORE_COLUMNS), generator=generator)
    for _ in range(ROUNDS):
        basis_VQ = torch.linalg.qr(matrix.times(basis_VQ))[0]
        basis_VQ = torch.linalg.qr(matrix.transposed_times(basis_VQ))[0]
    left_VQ, values_Q, turn_QQ = torch.linalg.svd(matrix.times(basis_VQ), full_matrices=False)
    root_K = values_Q[:rank].sqrt()
    left_VK, right_VK = left_VQ[:, :rank] * root_K, basis_VQ @ turn_QQ[:rank].T * root_K
    weight_V1 = matrix.weight_V[:, None]
    return LowRank(left=left_VK / weight_V1, right=right_VK / weight_V1, log_frequency=matrix.frequency_V.log())


class _Weighted:
    """The matrix [V, V] of log(p(next | token) / p(next)), each row and column times the root of its frequency."""

    def __init__(self, bigrams: Bigrams) -> None:
        V = bigrams.vocab_size
        first_V, second_V = bigrams.occurrences()
        self.frequency_V = (second_V + UNSEEN) / (second_V.sum() + UNSEEN * V)
        self.weight_V = self.frequency_V.sqrt()
        x, y = bigrams.first, bigrams.second
        more_P = torch.log1p(bigrams.count / (SMOOTHING * self.frequency_V[y]))
        values_P = more_P * self.weight_V[x] * self.weight_V[y]
        self._matrix = _compressed(x, y, values_P, V)
        by_second = torch.argsort(y * V + x)
        self._transposed = _compressed(y[by_second], x[by_second], values_P[by_second], V)
        self._unseen_V1 = (torch.log(SMOOTHING / (first_V + SMOOTHING)) * self.weight_V)[:, None]

    def times(self, basis_VQ: Tensor) -> Tensor:
        return self._matrix @ basis_VQ + self._unseen_V1 * (self.weight_V @ basis_VQ)

    def transposed_times(self, basis_VQ: Tensor) -> Tensor:
        return self._transposed @ basis_VQ + self.weight_V[:, None] * (self._unseen_V1.T @ basis_VQ)


def _compressed(row_P: Tensor, column_P: Tensor, value_P: Tensor, V: int) -> Tensor:
    """A sparse matrix [V, V] from its entries in the order of rows, then columns."""
    start_V = torch.searchsorted(row_P, torch.arange(V + 1))
    with catch_warnings():
        simplefilter("ignore", UserWarning)  # torch calls this form of a matrix new at its first use
        return torch.sparse_csr_tensor(start_V, column_P, value_P, (V, V), check_invariants=False)
