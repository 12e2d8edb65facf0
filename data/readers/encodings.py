"""Which encoding bytes have that are not UTF-8: what can be told from a file's beginning, and a guess for advice.

Tested in tests/data/sources/test_kinds.py.
"""

import codecs
import re
import unicodedata

_MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32LE"),
    (codecs.BOM_UTF32_BE, "UTF-32BE"),
    (codecs.BOM_UTF16_LE, "UTF-16LE"),
    (codecs.BOM_UTF16_BE, "UTF-16BE"),
)
_WIDE = ("UTF-32LE", "UTF-32BE", "UTF-16LE", "UTF-16BE")
_WHITE = "\t\n\v\f\r\x1b"
_CONTROLS = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]+")
_ODD = 0.03
"""Runs of control characters per byte, by which bytes are no text of one byte a character, such as UTF-8. A run counts
once: a text with a hole of NULs is one that a crash has damaged."""
_ALL = 0.95
"""Most share of control characters in a text."""
_MANY = 5
"""More different control characters than this are in no text."""
_WIDE_NULS = 0.2
"""Least share of NULs in a wide encoding of text that is UTF-8 too if its other bytes are no control characters."""
_COMMON = " \r\n.,\u3000\u3001\u3002\uff0c"
_WRONG = 0.01
"""Most share of characters that no text has, by which bytes may still be text in an encoding."""
_EUROPEAN = ("CP1252", "CP1250", "ISO8859-2", "CP850", "MACINTOSH")
_QUOTES, _BETWEEN = "‘“”„‚«»‹›", "’–—…"
"""Signs that stand before or behind a word, and those that may stand within one."""
_OTHERS = [
    *("cp1251", "koi8_r", "koi8_u", "cp866", "cp1125", "iso8859_5", "mac_cyrillic", "cp1253", "iso8859_7", "cp1255"),
    *("cp1256", "iso8859_6", "cp874", "tis_620", "cp932", "shift_jis", "euc_jp", "gb18030", "gbk", "big5", "big5hkscs"),
    *("cp949", "euc_kr", "cp1252", "cp1250", "iso8859_2", "cp1258"),
]
"""Encodings of text in which most letters are not ASCII: those that files still have."""
_ICONV = {"UTF-16-LE": "UTF-16LE", "UTF-16-BE": "UTF-16BE"}
"""Encodings by iconv's names where those are not Python's."""
_PYTHON = {"MACINTOSH": "mac_roman"}
_SEVEN_BITS = re.compile(rb"\x1b\$(?:[@BA]|\)[CAG])")
"""What switches the letters in ISO 2022, the seven-bit encodings of Japanese, Korean and Chinese mail."""
_WESTERN = 0.3
"""In languages with Latin letters fewer of the letters than this have an accent."""


def not_text(beginning: bytes) -> str:
    """``"UTF-16LE"``, ``"UTF-32BE"``, ``"ISO-2022-JP"`` and the like, or ``"bytes that are no text"``, for a file that
    begins so; ``""`` for what may be UTF-8 or another encoding of single bytes."""
    for mark, name in _MARKS:
        if beginning.startswith(mark):
            return name
    if escape := _SEVEN_BITS.search(beginning):
        return "ISO-2022-KR" if b"$)C" in escape[0] else "ISO-2022-JP"
    runs = _CONTROLS.findall(beginning)
    kinds = set(b"".join(runs))
    if sum(map(len, runs)) > _ALL * len(beginning):
        return "bytes that are no text"  # such as the NULs of blocks that were never written
    if len(runs) <= _ODD * len(beginning) and len(kinds) <= _MANY:
        return ""
    if kinds == {0} and beginning.count(0) < _WIDE_NULS * len(beginning) and _is_utf8(beginning):
        return ""
    found = {name: _n_common(beginning, name) for name in _WIDE}
    best = max(_WIDE, key=lambda name: found[name])
    return best if found[best] else "bytes that are no text"


def _n_common(content: bytes, name: str) -> int:
    """How many spaces, line ends and stops the bytes have in an encoding of two or four bytes a character; 0 where
    they are no text in it. With its bytes the wrong way round a text is mostly rare letters."""
    try:
        # A character may be cut off at the end.
        text = codecs.getincrementaldecoder(name)().decode(content)
    except UnicodeDecodeError:
        return 0
    n_wrong = sum(unicodedata.category(c) in ("Cc", "Cn", "Co", "Cs") and c not in _WHITE for c in text)
    return sum(c in _COMMON for c in text) if n_wrong <= _WRONG * len(text) else 0


def _is_utf8(beginning: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(beginning)
    except UnicodeDecodeError:
        return False
    return True


def advice(content: bytes) -> str:
    """What to do about text that is not UTF-8."""
    decoded = content.decode("utf-8", "replace")
    n_bad = decoded.count("\N{REPLACEMENT CHARACTER}")
    if sum(c > "\x7f" for c in decoded) > 2 * n_bad:
        return "the text around it is UTF-8, so that the file is damaged there: correct it"
    name = guess(content)
    return f"it looks like {name}: convert the file to UTF-8, for example with iconv -f {name} -t UTF-8"


def guess(content: bytes) -> str:
    """The likely encoding of text that is not UTF-8, by the name that ``iconv`` knows."""
    wide = not_text(content[:4096])
    if wide.startswith("UTF"):
        return wide
    high = sum(byte >= 0x80 for byte in content[: 1 << 20])
    letters = sum(chr(byte).isalpha() for byte in content[: 1 << 20] if byte < 0x80) + high
    if high < _WESTERN * letters:
        # CP1252 has LATIN1's letters, and also its quotes, dashes and the euro sign. The others are of Central Europe.
        return min(_EUROPEAN, key=lambda name: _n_odd(content[: 1 << 20], name))
    from charset_normalizer import from_bytes

    best = from_bytes(content[: 1 << 16], cp_isolation=_OTHERS).best()
    name = best.encoding.upper().replace("_", "-") if best and best.encoding not in ("utf_8", "ascii") else "CP1252"
    return _ICONV.get(name, name)


def _n_odd(content: bytes, name: str) -> int:
    """How many characters are where no text has them when the bytes are read in an encoding: signs next to letters,
    quotation marks between two, capitals behind small letters."""
    text = content.decode(_PYTHON.get(name, name), "replace")
    found = 0
    for match in re.finditer(r"(?<=\w)[^\x00-\x7f]|[^\x00-\x7f](?=\w)", text):
        each, before, after = match.group(), text[max(0, match.start() - 1)], text[match.end() : match.end() + 1]
        if each in _BETWEEN:
            continue
        found += before.isalpha() and after.isalpha() if each in _QUOTES else not each.isalpha()
        found += each.isupper() and before.islower()
    return found
