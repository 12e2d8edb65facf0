"""What documents are compared by: a hash of their words, and for near duplicates a sketch of their word sequences.

Two documents are exact duplicates if their words are the same (case, white space and Unicode composition aside). They
are near duplicates if the sets of their five-word sequences overlap by ``data.dedup_threshold`` (Jaccard). Near ones
are found by MinHash and locality-sensitive hashing (Broder 1997; Indyk and Motwani 1998): 128 hashes of the ``rensa``
library in 16 or 32 bands, candidates compared by their sketches. This finds nearly every pair well above the threshold,
about half of the pairs right at it, and none far below.

Tested in tests/data/sources/test_duplicates.py.
"""

import hashlib
from collections.abc import Sequence
from typing import Literal

import numpy as np

from slm.data.quality.words import words

N_HASHES = 128
SEED = 1
FEW_BANDS, MANY_BANDS = 16, 32  # thresholds of 0.75 and more need only half the bands, and half the memory
SHINGLE = 5  # words
_AT_ONCE = 16  # documents: the sequences of more do not stay in the processor's cache
_CHARS_AT_ONCE = 1 << 20  # the sequences of so much text take about 40 MB, those of a long document more

Verdict = Literal["", "exact", "near"]


def digest(plain: str) -> int:
    """A hash of a normalized text, 64 bits."""
    return int.from_bytes(hashlib.blake2b(plain.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def n_bands(threshold: float) -> int:
    """How many bands find documents that overlap by ``threshold``."""
    return FEW_BANDS if threshold >= 0.75 else MANY_BANDS


def shingles(plain: str) -> list[str]:
    """The sequences of five words; a shorter text is one sequence."""
    found = words(plain)
    if len(found) < SHINGLE:
        return [" ".join(found) or plain.encode("utf-8", "replace").decode()]
    return list(map(" ".join, zip(*(found[i:] for i in range(SHINGLE)), strict=False)))


def sketches(plain: Sequence[str]) -> np.ndarray:
    """The MinHash sketches of normalized texts, ``np.uint32[len(plain), N_HASHES]``."""
    from rensa import RMinHash

    rows: list[list[int]] = []
    tokens: list[list[str]] = []
    chars = 0
    for number, text in enumerate(plain, 1):
        tokens.append(shingles(text))
        chars += len(text)
        if len(tokens) == _AT_ONCE or chars > _CHARS_AT_ONCE or number == len(plain):
            rows += RMinHash.digests_from_token_sets(tokens, N_HASHES, SEED)
            tokens, chars = [], 0
    return np.array(rows, dtype=np.uint32).reshape(-1, N_HASHES)


def band_keys(found: np.ndarray, bands: int) -> np.ndarray:
    """A hash of each band of each sketch, ``np.uint64[n, bands]``: equal where all hashes of the band are equal."""
    parts = np.ascontiguousarray(found).view(np.uint64).reshape(len(found), bands, -1)
    seeds = np.arange(1, bands + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    keys = np.tile(seeds, (len(found), 1))
    for i in range(parts.shape[2]):
        keys = _mixed(keys ^ parts[:, :, i])
    return keys


def _mixed(values: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64: every bit of the result depends on every bit of the value."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
