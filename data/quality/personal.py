"""Personal data and secrets in a text, each replaced by a mark that says what stood there.

Found by their form, so some are missed, and now and then something else looks like one. Names and postal addresses are
not looked for.
"""

import functools
import ipaddress
import re
from collections.abc import Callable

VERSION = 1
"""Version of the patterns below. A changed pattern changes the text that a run reads."""
EMAIL, TELEPHONE, CARD, ADDRESS, KEY = "[email]", "[telephone]", "[card]", "[ip]", "[key]"
"""What takes the place of each kind."""

_KEY = re.compile(
    r"-----BEGIN (?P<what>(?:[A-Z]+ )*PRIVATE KEY)-----.*?-----END (?P=what)-----"
    r"|(?<![\w-])(?:"
    r"(?:AKIA|ASIA)[0-9A-Z]{16}"  # Amazon
    r"|gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{50,}|glpat-[\w-]{20,}"  # GitHub, GitLab
    r"|sk-(?:proj-|ant-[a-z0-9]+-)?[A-Za-z0-9_-]{20,}"  # OpenAI, Anthropic
    r"|hf_[A-Za-z0-9]{30,}|npm_[A-Za-z0-9]{36}|pypi-[\w-]{50,}"  # Hugging Face, npm, PyPI
    r"|AIza[\w-]{35}"  # Google
    r"|xox[abeoprs]-[A-Za-z0-9-]{10,}"  # Slack
    r"|[rs]k_live_[A-Za-z0-9]{20,}"  # Stripe
    r"|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}"  # JSON Web Token
    r")(?![\w-])",
    re.DOTALL,
)
_KEY_STARTS = ("PRIVATE KEY", "AKIA", "ASIA", "gh", "glpat", "sk-", "hf_", "npm_", "pypi-", "AIza", "xox", "k_live_")
_EMAIL = re.compile(r"(?<![\w.+%-])[\w][\w.+%-]{0,63}@(?:[^\W_](?:[\w-]{0,61}[^\W_])?\.)+[^\W\d_]{2,24}(?![\w@-])")
_CARD = re.compile(
    r"(?<![\w.,+-])(?:\d{13,19}|\d{4}([ -])\d{4}\1\d{4}\1\d{1,7}|\d{4}([ -])\d{6}\2\d{4,5})(?![\w-]|[.,]\d)"
)
_CARD_LENGTHS = (
    (re.compile(r"4"), (13, 16, 19)),  # Visa
    (re.compile(r"5[1-5]|222[1-9]|22[3-9]|2[3-6]|27[01]|2720"), (16,)),  # Mastercard
    (re.compile(r"3[47]"), (15,)),  # American Express
    (re.compile(r"30[0-5]|36|38|39"), (14,)),  # Diners Club
    (re.compile(r"6"), (16, 17, 18, 19)),  # Discover, Maestro, UnionPay
    (re.compile(r"35(?:2[89]|[3-8])"), (16,)),  # JCB
)
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w]|\.\d)")
_IPV6 = re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){3,7}[0-9A-Fa-f]{1,4}(?![\w:])")
_INTERNATIONAL = re.compile(
    r"(?<![\w+])(?:\+|00)[1-9]\d{0,14}(?:[ .\-/]?\(\d{1,4}\)[ .\-/]?\d{1,12})?(?:[ .\-/]\d{1,12}){0,6}(?!\w)"
)
_NATIONAL = re.compile(
    r"(?<![\w.+\-/])(?:1[-. ])?(?:\(\d{3}\) ?\d{3}[-. ]\d{4}|\d{3}([-.])\d{3}\1\d{4})(?![\w-]|[.]\d)"  # North America
    r"|(?<![\w.,+\-/])(?:"
    r"0[1-9](?:([ .-])\d{2})(?:\2\d{2}){3}"  # France
    r"|0[1-9]\d{0,3} ?[/-] ?\d{5,8}"  # Germany, Austria
    r"|0[1-9]\d{1,3} \d{3,4} \d{3,4}"  # Great Britain
    r")(?![\w-]|[.,]\d)"
)
_NUMBER = re.compile(r"\d[\d ().\-/]{5,}\d")
"""What every card, telephone number and IPv4 address has in it."""
_CALLED = re.compile(
    r"(?i)(\b(?:(?:tele)?phone|telefon|tel|t[ée]l[ée]phone|tel[ée]fono|fax|whatsapp)(?: (?:number|no|nr))?[.:]{0,2} ?"
    r"|\b(?:mobile|cell|handy|call)(?:(?: (?:number|no|nr|me at|us at))[.:]?|[.:]{1,2}) ?)"
    r"(\(?\d[\d ()./-]{5,18}\d)(?!\w)"
)


def mask(text: str, note: Callable[[str, str], None] | None = None) -> str:
    """The text with a mark for each address, number and key. ``note`` is told the mark and what stood there."""
    if "eyJ" in text or any(start in text for start in _KEY_STARTS):
        text = _KEY.sub(functools.partial(_put, KEY, note), text)
    if "@" not in text and ":" not in text and _NUMBER.search(text) is None:
        return text
    return "\n".join(
        [_mask_line(line, note) for line in text.split("\n")]
    )  # no form but a key's goes over a line's end


def _mask_line(line: str, note: Callable[[str, str], None] | None) -> str:
    """The expressions see only lines that may hold something: they are slow."""
    if "@" in line:
        line = _EMAIL.sub(functools.partial(_put, EMAIL, note), line)
    if ":" in line and ("::" in line or line.count(":") >= 7):
        line = _IPV6.sub(functools.partial(_put, ADDRESS, note), line)
    if _NUMBER.search(line) is None:
        return line
    line = _CARD.sub(functools.partial(_put, CARD, note), line)
    line = _IPV4.sub(functools.partial(_put, ADDRESS, note), line)
    line = _INTERNATIONAL.sub(functools.partial(_put, TELEPHONE, note), line)
    line = _NATIONAL.sub(functools.partial(_put, TELEPHONE, note), line)
    return _CALLED.sub(functools.partial(_put_number, note), line)


def _put(kind: str, note: Callable[[str, str], None] | None, match: re.Match[str]) -> str:
    if not _IS[kind](match[0]):
        return match[0]
    if note is not None:
        note(kind, match[0])
    return kind


def _put_number(note: Callable[[str, str], None] | None, match: re.Match[str]) -> str:
    if not 7 <= _count_digits(match[2]) <= 15:
        return match[0]
    if note is not None:
        note(TELEPHONE, match[2])
    return match[1] + TELEPHONE


def luhn(digits: str) -> bool:
    """Whether the last digit is the check digit of the others (ISO/IEC 7812-1, annex B)."""
    doubled = [int(each) * (2 if at % 2 else 1) for at, each in enumerate(reversed(digits))]
    return sum(each - 9 if each > 9 else each for each in doubled) % 10 == 0


def _is_card(text: str) -> bool:
    digits = re.sub(r"\D", "", text)
    known = any(start.match(digits) and len(digits) in lengths for start, lengths in _CARD_LENGTHS)
    return known and len(set(digits)) > 1 and luhn(digits)


def _is_address(text: str) -> bool:
    """Whether it is an address of the public internet. Four numbers below 20 are more often a version or a section."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    small = address.version == 4 and max(address.packed) < 20
    return address.is_global and not small


def _is_international(text: str) -> bool:
    return 8 <= _count_digits(text.removeprefix("00")) <= 15


def _count_digits(text: str) -> int:
    return sum(map(str.isdigit, text))


def _always(_: str) -> bool:
    return True


_IS: dict[str, Callable[[str], bool]] = {
    EMAIL: _always,
    KEY: _always,
    CARD: _is_card,
    ADDRESS: _is_address,
    TELEPHONE: lambda text: not text.startswith(("+", "00")) or _is_international(text),
}
