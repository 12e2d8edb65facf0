"""What a text is made of: its words as documents are compared by, and filters by length, letters and script.

Words are composed (NFC), in one case, without punctuation. Letters and scripts are defined by
``slm.data.unicode_scripts``. A document without letters has no script.

Tested in tests/data/sources/test_duplicates.py, tests/data/sources/test_filters.py.
"""

import re
import unicodedata
from collections.abc import Callable

from slm.data.config import SourceConfig
from slm.data.unicode_scripts import LETTER, OTHER, count_classes, scripts


def by_characters(source: SourceConfig) -> Callable[[str], str | None] | None:
    """A function that returns the option that rejects a text (``min_chars``, ``max_chars``, ``min_letters`` or
    ``script``), or None where the text passes; None without such options."""
    if not (source.min_chars or source.max_chars or source.min_letters or source.script):
        return None
    by_class = bool(source.min_letters or source.script)
    wanted = scripts().get(source.script_key, -1) if source.script else -1

    def reason(text: str) -> str | None:
        if len(text) < source.min_chars:
            return "min_chars"
        if source.max_chars and len(text) > source.max_chars:
            return "max_chars"
        if not by_class:
            return None
        counts = count_classes(text)
        letters = int(counts[LETTER:].sum())
        if letters < source.min_letters * (letters + int(counts[OTHER])):
            return "min_letters"
        if source.script and (letters == 0 or counts[wanted] < source.min_script * letters):
            return "script"
        return None

    return reason


_CJK = r"\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_CHARACTER, _WORD, _ONE_BY_ONE = map(re.compile, (f"[{_CJK}]", r"\w+", rf"[{_CJK}]|\w+"))


def normalized(text: str) -> str:
    """The form in which documents are compared: composed (NFC), case-folded, words separated by one space."""
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


def words(plain: str) -> list[str]:
    """The words of a text. In Chinese and Japanese, a character is a word."""
    # The pattern without these characters finds the same words a third faster where there are none.
    return (_ONE_BY_ONE if not plain.isascii() and _CHARACTER.search(plain) else _WORD).findall(plain)
