"""Decontamination: no training text holds a passage of the texts that a model is evaluated on.

A document is contaminated where ``GRAM`` words in a row are also in an evaluation text (Brown et al. 2020, appendix C).
An evaluation text with fewer words counts as a whole, down to ``FEWEST`` words; shorter ones are too common to compare.
"""

import hashlib
import itertools
import re
import unicodedata
from collections.abc import Iterable

import numpy as np

_CJK = r"\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD, _CHARACTER, _WORD_OR_CHARACTER = map(re.compile, (r"\w+", f"[{_CJK}]", rf"[{_CJK}]|[^\W{_CJK}]+"))
GRAM, FEWEST = 13, 8
"""Words in a row."""
LONG = 32768
"""Characters; from a longer document only the passages are cut out. A shorter one is left out."""
AROUND = 200
"""Characters that are cut out before and after such a passage, too (Brown et al. 2020)."""
_BASE = np.uint64(0x9E3779B97F4A7C15)


class Contamination:
    """The passages of evaluation texts, and whether a document holds one of them.

    Memory: 8 bytes for each of their words, and their vocabulary.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self._ids: dict[str, int] = {}
        self.texts, self.too_short = 0, 0
        """Evaluation texts that were read; those of them with too few words to be compared."""
        hashes: dict[int, list[np.ndarray]] = {}
        for text in texts:
            words = _words(text)
            self.texts += 1
            if len(words) < FEWEST:
                self.too_short += 1
                continue
            ids = np.array([self._ids.setdefault(word, len(self._ids) + 1) for word in words], dtype=np.uint64)
            n = min(GRAM, len(words))
            hashes.setdefault(n, []).append(_hashes(ids, n))
        self._grams = {n: np.unique(np.concatenate(found)) for n, found in sorted(hashes.items())}

    @property
    def identity(self) -> str:
        """Changes with anything that changes what is found."""
        digest = hashlib.blake2b(repr((GRAM, FEWEST, LONG, AROUND, list(self._ids))).encode(), digest_size=8)
        for n, grams in self._grams.items():
            digest.update(bytes([n]) + grams.tobytes())
        return digest.hexdigest()

    def is_in(self, text: str) -> bool:
        """Whether the text holds a passage."""
        return any(len(starts) for _, starts in self._found(_words(text)))

    def without(self, text: str) -> str:
        """The text without these passages and what is next to them; the same text where it holds none."""
        if not self.is_in(text):
            return text
        text = unicodedata.normalize("NFC", text)
        spans = [match.span() for match in _form(text).finditer(text)]
        found = self._found([text[begin:end].casefold() for begin, end in spans])
        cut = sorted((spans[start][0], spans[start + n - 1][1]) for n, starts in found for start in starts.tolist())
        kept, at = [], 0
        for begin, end in cut:
            if begin - AROUND > at:
                kept.append(text[at : _space(text, begin - AROUND, at)])
            at = max(at, _space(text, min(len(text), end + AROUND), len(text)))
        return "\n\n".join([*kept, text[at:]]).strip("\n") if at < len(text) else "\n\n".join(kept)

    def _found(self, words: list[str]) -> list[tuple[int, np.ndarray]]:
        """For each passage length: its words, and the numbers of the words at which a passage begins."""
        if len(words) < FEWEST:
            return []
        ids = np.array(list(map(self._ids.get, words, itertools.repeat(0))), dtype=np.uint64)
        unknown = np.concatenate([[0], np.cumsum(ids == 0)])
        found = []
        for n, grams in self._grams.items():
            if n > len(words):
                continue
            starts = np.flatnonzero(unknown[n:] == unknown[:-n])  # passages of known words only
            if len(starts):
                hashes = _hashes(ids, n)[starts]
                at = np.minimum(np.searchsorted(grams, hashes), len(grams) - 1)
                found.append((n, starts[grams[at] == hashes]))
        return found


def _words(text: str) -> list[str]:
    text = unicodedata.normalize("NFC", text).casefold()
    return _form(text).findall(text)


def _form(text: str) -> re.Pattern[str]:
    """What a word is in the text: in Chinese and Japanese a character, also where it follows a letter."""
    return _WORD_OR_CHARACTER if _CHARACTER.search(text) else _WORD


def _hashes(ids: np.ndarray, n: int) -> np.ndarray:
    """A hash of each ``n`` ids in a row, ``np.uint64[len(ids) - n + 1]``."""
    count = len(ids) - n + 1
    hashes = np.zeros(count, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for offset in range(n):
            hashes = hashes * _BASE + ids[offset : offset + count]
            hashes ^= hashes >> np.uint64(29)
    return hashes


def _space(text: str, position: int, limit: int) -> int:
    """A position between words near ``position``, on the side of ``limit``."""
    if limit < position:
        return max(limit, text.rfind(" ", limit, position) + 1)
    found = text.find(" ", position, limit)
    return limit if found < 0 else found + 1
