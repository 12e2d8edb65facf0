"""The rules by which Gopher's training text was chosen (Rae et al. 2021, table A1): repetition, and signs of prose.

The rules on stop words and mean word length are for English; ``data.rules=repetition`` leaves them out.
"""

import re
from collections.abc import Iterable
from typing import Literal

import numpy as np

VERSION = 1
"""Version of the rules below. A changed rule changes the text that a run reads."""
Rules = Literal["repetition", "gopher"]

_LINES, _PARAGRAPHS = re.compile(r"\n+"), re.compile(r"\n{2,}")
_STOP_WORDS = frozenset(("the", "be", "to", "of", "and", "that", "have", "with"))
_BULLETS = ("\u2022", "\u2023", "\u25e6", "\u2043", "-", "*")
_ELLIPSES = ("...", "\u2026")
_MOST_OF_DUPLICATES = {
    "lines that occur twice": 0.30,
    "paragraphs that occur twice": 0.30,
    "characters in lines that occur twice": 0.20,
    "characters in paragraphs that occur twice": 0.20,
}
_MOST_OF_TOP_GRAM = {2: 0.20, 3: 0.18, 4: 0.16}
_BASE = np.uint64(0x9E3779B97F4A7C15)
_MOST_OF_REPEATED_GRAMS = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}


def broken_rule(text: str, rules: Rules) -> str | None:
    """The first rule that the text breaks, in a few words; None where it keeps them all."""
    words = text.split()
    broken = _prose(text, words) if rules == "gopher" else None
    return broken or _repetition(text, words)


def _prose(text: str, words: list[str]) -> str | None:
    """Gopher's quality rules."""
    if not 50 <= len(words) <= 100_000:
        return "fewer than 50 words or more than 100,000"
    if not 3 <= sum(map(len, words)) / len(words) <= 10:
        return "mean length of words not 3 to 10"
    if text.count("#") / len(words) > 0.1 or sum(map(text.count, _ELLIPSES)) / len(words) > 0.1:
        return "a # or an ellipsis for every tenth word"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if sum(line.startswith(_BULLETS) for line in lines) > 0.9 * len(lines):
        return "90 % of lines with bullets"
    if sum(line.endswith(_ELLIPSES) for line in lines) > 0.3 * len(lines):
        return "30 % of lines that end in an ellipsis"
    if sum(any(map(str.isalpha, word)) for word in words) < 0.8 * len(words):
        return "20 % of words without a letter"
    if len(_STOP_WORDS.intersection(map(str.lower, words))) < 2:
        return "fewer than two of the words the, be, to, of, and, that, have, with"
    return None


def _repetition(text: str, words: list[str]) -> str | None:
    """Gopher's repetition rules."""
    stripped = text.strip()
    if not stripped or not words:
        return None
    shares = {}
    for name, parts in (("lines", _LINES.split(stripped)), ("paragraphs", _PARAGRAPHS.split(stripped))):
        again, characters = _repeated(parts)
        shares[f"{name} that occur twice"] = again / len(parts)
        shares[f"characters in {name} that occur twice"] = characters / len(stripped)
    for name, most in _MOST_OF_DUPLICATES.items():
        if shares[name] > most:
            return f"{most:.0%} {name}"
    grams = _Grams(words)
    for n, most in _MOST_OF_TOP_GRAM.items():
        if grams.top(n) > most * len(text):
            return f"{most:.0%} of characters in one sequence of {n} words"
    for n, most in _MOST_OF_REPEATED_GRAMS.items():
        if grams.repeated(n) > most * len(text):
            return f"{most:.0%} of characters in repeated sequences of {n} words"
    return None


def _repeated(parts: Iterable[str]) -> tuple[int, int]:
    """How many parts repeat an earlier one, and their characters."""
    seen: set[str] = set()
    count = characters = 0
    for part in parts:
        if part in seen:
            count += 1
            characters += len(part)
        seen.add(part)
    return count, characters


class _Grams:
    """The sequences of words in a text, and the characters that some of them have."""

    def __init__(self, words: list[str]) -> None:
        known: dict[str, int] = {}
        self._ids = np.array([known.setdefault(word, len(known) + 1) for word in words], dtype=np.uint64)
        self._ends = np.concatenate([[0], np.cumsum([len(word) for word in words])])

    def top(self, n: int) -> int:
        """Characters in all places of the most frequent ``n`` words in a row; 0 where none comes twice."""
        _, first, counts = np.unique(self._hashes(n), return_index=True, return_counts=True)
        if not len(counts) or (most := int(counts.max())) < 2:
            return 0
        return most * (int(self._chars(first[counts == most], n).max()) + n - 1)

    def repeated(self, n: int) -> int:
        """Characters in ``n`` words in a row that came before, each character counted once."""
        _, first, inverse = np.unique(self._hashes(n), return_index=True, return_inverse=True)
        again = np.flatnonzero(first[inverse] != np.arange(len(inverse)))
        chars, at = 0, 0
        for start, length in zip(again.tolist(), self._chars(again, n).tolist(), strict=True):
            if start >= at:
                chars += length
                at = start + n
        return chars

    def _chars(self, starts: np.ndarray, n: int) -> np.ndarray:
        """Characters of the ``n`` words from each start on, without the spaces between them."""
        return self._ends[starts + n] - self._ends[starts]

    def _hashes(self, n: int) -> np.ndarray:
        """A hash of each ``n`` words in a row."""
        count = max(0, len(self._ids) - n + 1)
        hashes = np.zeros(count, dtype=np.uint64)
        for offset in range(n):
            hashes = (hashes ^ (hashes >> np.uint64(29))) * _BASE + self._ids[offset : offset + count]
        return hashes
