"""Which documents are worth learning from: by length, by letters, by writing system. Each refusal has a reason."""

import functools
import unicodedata
from collections.abc import Callable
from typing import Any

import numpy as np

from data.config import SourceConfig

REASONS = ("min_chars", "max_chars", "min_letters", "script")
"""What :func:``make_filter`` may answer: the name of the option that leaves a document out."""

_SPACE, _OTHER, _LETTER = 0, 1, 2  # a class of characters; scripts follow from _LETTER on


def make_filter(source: SourceConfig) -> Callable[[str], str | None] | None:
    """A function from a text to the option that leaves it out, or to None where it stays; None without filters.

    Letters are what Unicode calls letters (``str.isalpha``). Their script is the first word of their Unicode name,
    as LATIN in LATIN SMALL LETTER A; a document without letters belongs to no script.
    """
    if not (source.min_chars or source.max_chars or source.min_letters or source.script):
        return None
    by_character = bool(source.min_letters or source.script)
    wanted = scripts().get(source.script, -1)

    def reason(text: str) -> str | None:
        if len(text) < source.min_chars:
            return "min_chars"
        if source.max_chars and len(text) > source.max_chars:
            return "max_chars"
        if not by_character:
            return None
        counts = _count(text)
        letters = int(counts[_LETTER:].sum())
        if letters < source.min_letters * (letters + int(counts[_OTHER])):
            return "min_letters"
        if source.script and (letters == 0 or counts[wanted] < source.min_script * letters):
            return "script"
        return None

    return reason


def options(source: SourceConfig) -> tuple[tuple[str, Any], ...]:
    """The filters' options by name."""
    names = ("min_chars", "max_chars", "min_letters", "script", "min_script")
    return tuple((name, getattr(source, name)) for name in names)


def scripts() -> dict[str, int]:
    """The scripts there are, in lower case, each with its class in the table of characters."""
    return _tables()[0]


def _count(text: str) -> np.ndarray:
    """How many characters of each class."""
    names, table = _tables()
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    return np.bincount(table[codes], minlength=_LETTER + 1 + len(names))


@functools.cache
def _tables() -> tuple[dict[str, int], np.ndarray]:
    """The scripts' classes, and the class of every code point (about 2 MB, made in half a second)."""
    names: dict[str, int] = {}
    table = np.full(0x110000, _OTHER, dtype=np.uint16)
    for code in range(0x110000):
        character = chr(code)
        if character.isalpha():
            name = unicodedata.name(character, "").split(" ")[0].lower()
            name = name.split("-")[0]
            table[code] = names.setdefault(name, _LETTER + 1 + len(names)) if name else _LETTER
        elif character.isspace():
            table[code] = _SPACE
    return names, table
