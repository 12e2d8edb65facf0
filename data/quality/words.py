"""Words as documents are compared by: composed (NFC), in one case, without punctuation.

Tested in tests/data/sources/test_duplicates.py.
"""

import re
import unicodedata

WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|\w+")
"""A word. In Chinese and Japanese, a character is a word."""


def normalized(text: str) -> str:
    """The form in which documents are compared: composed (NFC), case-folded, words separated by one space."""
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())
