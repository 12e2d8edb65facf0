"""Which encoding bytes have that are not UTF-8: what can be told from a file's beginning, and a guess for advice.

Tested in tests/data/sources/test_kinds.py.
"""

import codecs
import unicodedata

_MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32LE"),
    (codecs.BOM_UTF32_BE, "UTF-32BE"),
    (codecs.BOM_UTF16_LE, "UTF-16LE"),
    (codecs.BOM_UTF16_BE, "UTF-16BE"),
)
_WIDE = ("UTF-32LE", "UTF-32BE", "UTF-16LE", "UTF-16BE")
_WHITE = b"\t\n\v\f\r\x1b"
_CONTROLS = bytes(set(range(32)) - set(_WHITE))
_ODD = 0.03
"""Least share of control characters by which bytes are no text of one byte a character, such as UTF-8."""
_WRONG = 0.01
"""Most share of characters that no text has, by which bytes may still be text in an encoding."""
_WESTERN = 0.3
"""In Western languages fewer of the letters than this have an accent."""


def not_text(beginning: bytes) -> str:
    """``"UTF-16LE"``, ``"UTF-32BE"`` and the like, or ``"bytes that are no text"``, for a file that begins so; ``""``
    for what may be UTF-8 or another encoding of single bytes."""
    for mark, name in _MARKS:
        if beginning.startswith(mark):
            return name
    n_controls = len(beginning) - len(beginning.translate(None, _CONTROLS))
    if n_controls <= _ODD * len(beginning):
        return ""
    for name in _WIDE:
        if _is_plausible(beginning, name):
            return name
    return "bytes that are no text"


def _is_plausible(content: bytes, name: str) -> bool:
    """Whether bytes may be text in an encoding of two or four bytes a character."""
    try:
        # A character may be cut off at the end.
        text = codecs.getincrementaldecoder(name)().decode(content)
    except UnicodeDecodeError:
        return False
    n_wrong = sum(
        unicodedata.category(c) in ("Cc", "Cn", "Co", "Cs") and c not in "\t\n\v\f\r\x1b" for c in text
    )
    # Letters of several scripts in turn are what two letters of ASCII become as one.
    return bool(text) and n_wrong <= _WRONG * len(text) and any(c in " \n.,\u3000\u3002" for c in text)


def guess(content: bytes) -> str:
    """The likely encoding of text that is not UTF-8, by the name that ``iconv`` knows."""
    wide = not_text(content[:4096])
    if wide.startswith("UTF"):
        return wide
    high = sum(byte >= 0x80 for byte in content[: 1 << 20])
    letters = sum(chr(byte).isalpha() for byte in content[: 1 << 20] if byte < 0x80) + high
    if high < _WESTERN * letters and _decodes(content, "cp1252"):
        # A superset of LATIN1's letters: only the quotes, dashes and the euro sign differ.
        return "CP1252"
    from charset_normalizer import from_bytes

    best = from_bytes(content[: 1 << 16]).best()
    return best.encoding.upper().replace("_", "-") if best and best.encoding not in ("utf_8", "ascii") else "CP1252"


def _decodes(content: bytes, name: str) -> bool:
    try:
        content.decode(name)
    except UnicodeDecodeError:
        return False
    return True
