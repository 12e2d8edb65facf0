"""Duplicates among documents that are given one after another, with a verdict on each at once. All is in memory.

Tested in tests/data/sources/test_duplicates.py.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

from slm.data.quality.repeats.sketch import N_HASHES, SEED, Verdict, digest, n_bands, shingles
from slm.data.quality.words import normalized


class Finder:
    """Decides for each document in turn whether it repeats an earlier one; the first of several duplicates stays.

    Memory per document: about 90 bytes for ``exact``; for ``near`` 2.2 KB, or 4.6 KB below a threshold of 0.75.
    """

    def __init__(self, mode: Literal["exact", "near"], threshold: float, *, most_near: float = math.inf) -> None:
        """``most_near``: number of documents that are compared for near duplicates. Later
        documents are compared for exact ones only."""
        self._most_near = most_near
        self._seen: set[int] = set()
        self._near: Any = None
        self._number = 0
        if mode == "near":
            from rensa import RMinHashDeduplicator

            self._near = RMinHashDeduplicator(
                threshold=threshold, num_perm=N_HASHES, use_lsh=True, num_bands=n_bands(threshold), seed=SEED
            )

    @property
    def is_full(self) -> bool:
        """Whether near duplicates are not looked for any more."""
        return self._number >= self._most_near

    def add(self, texts: Sequence[str]) -> list[Verdict]:
        """A verdict on each text: ``""`` for one that repeats no earlier text."""
        verdicts: list[Verdict] = []
        fresh: list[tuple[int, str]] = []
        for index, text in enumerate(texts):
            plain = normalized(text)
            found = digest(plain)
            repeated = found in self._seen
            verdicts.append("exact" if repeated else "")
            if not repeated:
                self._seen.add(found)
                fresh.append((index, plain))
        if self._near is not None and not self.is_full:
            entries = [(str(self._number + i), shingles(plain)) for i, (_, plain) in enumerate(fresh)]
            self._number += len(fresh)
            for (index, _), kept in zip(fresh, self._near.add_pairs(entries), strict=True):
                if not kept:
                    verdicts[index] = "near"
        return verdicts
