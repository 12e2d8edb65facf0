"""From a row of logits to the few tokens that a sampler has to look at. Pure numpy.

llama.cpp's samplers take every token of the vocabulary into an array, sort it and sum it, one sequence after the
other: 0.06 to 3 ms a token at 50,000 entries, beside 2 ms for a token's share of a batch. Nearly all of these tokens
can be ruled out beforehand, and what is left is the same.

Shapes: V: vocabulary, G: groups.
"""

from __future__ import annotations

import numpy as np

_COLUMNS = 512
_GROUPS = 224
"""About the square root of a vocabulary."""


def top(row_V: np.ndarray, k: int) -> np.ndarray:
    """Ids, ascending, of the ``k`` highest entries, and of some more: most often a few, with many equal ones many."""
    n = len(row_V)
    if k >= n:
        return np.arange(n)
    if 2 * k <= _COLUMNS and n >= 4 * _COLUMNS:
        # The k-th highest of the columns' highest is at most the k-th highest of all.
        highest = row_V[: n // _COLUMNS * _COLUMNS].reshape(-1, _COLUMNS).max(axis=0)
        bound = np.partition(highest, _COLUMNS - k)[_COLUMNS - k]
    else:
        bound = np.partition(row_V, n - k)[n - k]
    return np.flatnonzero(row_V >= bound)


def nucleus(row_V: np.ndarray, highest: float, p: float, *, most: int = 256) -> np.ndarray | None:
    """Ids, highest first, of the fewest tokens that have the probability ``p`` together; None when that takes more
    than ``most``. ``highest``: the row's maximum."""
    ids = top(row_V, most)
    total = np.exp(row_V - highest).sum(dtype=np.float64)
    ids = ids[np.argsort(-row_V[ids], kind="stable")][:most]
    reached = np.exp(row_V[ids] - highest).cumsum(dtype=np.float64) >= p * total
    n = int(reached.argmax())
    return ids[: n + 1] if reached[n] else None


def groups(row_V: np.ndarray, highest: float, temperature: float) -> np.ndarray:
    """float32 [G]: logarithms of the groups' parts of exp(row / temperature). Token t is in group t mod G; one that
    is drawn from a group drawn by these is drawn from the whole."""
    weights = np.zeros(-(-len(row_V) // _GROUPS) * _GROUPS, np.float32)
    part = weights[: len(row_V)]
    np.subtract(row_V, highest, out=part)
    part /= temperature
    np.exp(part, out=part)
    with np.errstate(divide="ignore"):
        return np.log(weights.reshape(-1, _GROUPS).sum(axis=0))


def members(group: int, n: int) -> np.ndarray:
    """Ids of a group's tokens in a vocabulary of ``n``."""
    return np.arange(group, n, _GROUPS)
