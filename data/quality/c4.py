"""The rules by which pages of the web became C4 (Raffel et al. 2020, section 2.2), for English prose.

Lines are left out, and then pages. Two of C4's rules are their own options: bad words (``data.blocked_words``) and
pages in other languages (``data.languages``). A sentence ends with a terminal mark; C4 asked NLTK where one ends.
"""

import functools
import re
from typing import NamedTuple

VERSION = 1
"""Version of the rules below. A changed rule changes the text that a run reads."""
FEWEST_WORDS, FEWEST_SENTENCES = 5, 3
"""Fewest words of a line, and fewest sentences of a page."""
LONGEST_WORD = 1000
"""Characters."""
_TERMINAL = (".", "!", "?", '"', "\u201d")
_ELLIPSES = ("...", "\u2026")
_SENTENCE = re.compile(r"[.!?]+[\"'\u201d\u2019)\]]*(?=\s|$)")
_NOTICES = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")


class Cleaned(NamedTuple):
    """What the rules leave of a page."""

    text: str
    """Its lines that are kept."""
    dropped: tuple[str, ...]
    """The others, empty ones not counted."""
    broken: str | None
    """The rule that leaves out the page; None where it stays."""


@functools.lru_cache(maxsize=1)  # one step asks whether the page stays, the next for its lines
def clean(text: str) -> Cleaned:
    """Apply the rules to a page."""
    lower = text.lower()
    if "{" in text:
        return Cleaned("", (), "a curly bracket")
    if "lorem ipsum" in lower:
        return Cleaned("", (), "lorem ipsum")
    kept, dropped = [], []
    for line in text.split("\n"):
        if not line.strip() or _stays(line.strip()):
            kept.append(line)
        else:
            dropped.append(line)
    left = re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip("\n") if dropped else text
    few = len(_SENTENCE.findall(left)) < FEWEST_SENTENCES
    broken = f"fewer than {FEWEST_SENTENCES} sentences in lines that end with a terminal mark" if few else None
    return Cleaned(left, tuple(dropped), broken)


def _stays(line: str) -> bool:
    words = line.split()
    if not line.endswith(_TERMINAL) or line.endswith(_ELLIPSES) or len(words) < FEWEST_WORDS:
        return False
    if max(map(len, words)) > LONGEST_WORD:
        return False
    lower = line.lower()
    return "javascript" not in lower and not any(each in lower for each in _NOTICES)
