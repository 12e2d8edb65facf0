"""JSON strings that match a regular expression, as GBNF: ``pattern`` and ``format`` of JSON Schema.

Supported is what a grammar can express of ECMA's regular expressions: characters, classes, groups, alternatives and
repetitions, and ``^`` and ``$`` at the ends of an alternative that is not in a group. Other assertions and references
back are refused. As JSON Schema has it, a pattern without ``^`` and ``$`` may match anywhere in the string.

Tested in tests/serve/grammar/test_schema_values.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from slm.serve.grammar.tree import MAX_REPEATS, GrammarError, quote

Ranges = list[tuple[int, int]]
"""Code points, first and last of each range."""

_LAST = 0x10FFFF
_DIGIT: Ranges = [(0x30, 0x39)]
_WORD: Ranges = [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]
_SPACE: Ranges = [(9, 13), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029)]
_SPACE += [(0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)]
_LINE_END: Ranges = [(10, 10), (13, 13), (0x2028, 0x2029)]
_NOT_RAW: Ranges = [(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x7F), (0xD800, 0xDFFF)]
"""Characters that a JSON string does not hold as they are."""
_ESCAPED = {0x22: '\\"', 0x5C: "\\\\", 8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r"}
"""As JSON writes them."""
_CONTROL = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_MAX_DEPTH = 24

_HOST = r"[A-Za-z0-9]{1,20}(-[A-Za-z0-9]{1,20}){0,1}(\.[A-Za-z0-9]{1,20}(-[A-Za-z0-9]{1,20}){0,1})"
_DATE = r"[12]\d{3}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8]))"
_TIME = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)"
_IPV4 = r"(25[0-5]|2[0-4]\d|1\d{2}|[1-9]?\d)"
_DURATION = r"P(\d{1,3}W|\d{1,3}D(T\d{1,2}H)?|T(\d{1,2}H(\d{1,2}M(\d{1,2}S)?)?|\d{1,2}M(\d{1,2}S)?|\d{1,2}S))"
FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"({_DATE})T({_TIME})",
    "duration": _DURATION,
    "uuid": r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "email": rf"[A-Za-z0-9_+-]{{1,20}}(\.[A-Za-z0-9_+-]{{1,20}}){{0,3}}@{_HOST}{{1,3}}",
    "hostname": rf"{_HOST}{{0,3}}",
    "ipv4": rf"{_IPV4}(\.{_IPV4}){{3}}",
    "ipv6": r"[0-9a-f]{1,4}(:[0-9a-f]{1,4}){7}",
    "uri": rf"https?://{_HOST}{{1,3}}(/[A-Za-z0-9._~-]{{0,40}}){{0,8}}",
}
"""Each is a part of what its standard allows: dates from 1000 to 2999 without 29 February, whole IPv6 addresses, http
addresses."""


@dataclass(frozen=True)
class StringRule:
    """What stands between the quotation marks, and how many characters it means."""

    gbnf: str
    shortest: int
    longest: int | None
    """None: no limit."""


def format_rule(name: str, where: str) -> StringRule:
    """The strings of a format. Raises ``GrammarError`` for one that is not supported."""
    if name not in FORMATS:
        raise GrammarError(f"{where}: 'format' {name[:40]!r} is not supported; supported are {', '.join(FORMATS)}")
    return pattern_rule(f"^({FORMATS[name]})$", where)


def pattern_rule(pattern: str, where: str) -> StringRule:
    """The strings that match a pattern. Raises ``GrammarError`` for what is not supported."""
    return _Parser(pattern, where).whole()


class _Parser:
    def __init__(self, pattern: str, where: str) -> None:
        self._text, self._where, self._at = pattern, where, 0

    def _error(self, what: str) -> GrammarError:
        return GrammarError(f"{self._where}: 'pattern' {self._text[:100]!r}, character {self._at + 1}: {what}")

    def _peek(self, n: int = 1) -> str:
        return self._text[self._at : self._at + n]

    def _take(self, text: str) -> bool:
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    # -- the parts of a pattern ----------------------------------------------------------------------------

    def whole(self) -> StringRule:
        alternatives = [self._anchored()]
        while self._take("|"):
            alternatives.append(self._anchored())
        if self._at < len(self._text):
            raise self._error("a bracket is closed that was not opened")
        return _any_of(alternatives)

    def _anchored(self) -> StringRule:
        anything = StringRule("char*", 0, None)
        start = self._take("^")
        inner = self._sequence(0, ends="|")
        end = self._take("$")
        if end and self._peek() not in ("", "|"):
            raise self._error("$ is supported at the end only")
        return _joined([*([] if start else [anything]), inner, *([] if end else [anything])])

    def _choice(self, depth: int) -> StringRule:
        if depth > _MAX_DEPTH:
            raise self._error(f"groups are nested more than {_MAX_DEPTH} deep")
        alternatives = [self._sequence(depth)]
        while self._take("|"):
            alternatives.append(self._sequence(depth))
        return _any_of(alternatives)

    def _sequence(self, depth: int, ends: str = "") -> StringRule:
        parts = []
        while (char := self._peek()) and char not in "|)":
            if char == "$" and not depth:
                break
            if char in "^$":
                raise self._error(f"{char} is supported at the beginning or the end of the pattern only")
            parts.append(self._repeated(self._atom(depth)))
        return _joined(parts)

    def _atom(self, depth: int) -> StringRule:
        char = self._peek()
        if char == "(":
            self._at += 1
            if self._peek() == "?" and not self._take("?:"):
                raise self._error("looking ahead or behind and named groups are not supported; use (...) or (?:...)")
            inner = self._choice(depth + 1)
            if not self._take(")"):
                raise self._error("a bracket is not closed")
            return inner
        if char == "[":
            return self._one_of(self._class())
        if char in "*+?{":
            raise self._error("there is nothing to repeat")
        self._at += 1
        if char == ".":
            return self._one_of(_complement(_LINE_END))
        if char == "\\":
            return self._one_of(self._escape(in_class=False))
        return self._one_of([(ord(char), ord(char))])

    def _repeated(self, inner: StringRule) -> StringRule:
        low: int
        high: int | None
        if self._take("*"):
            low, high = 0, None
        elif self._take("+"):
            low, high = 1, None
        elif self._take("?"):
            low, high = 0, 1
        elif self._take("{"):
            low = self._number()
            high = low
            if self._take(","):
                high = None if self._peek() == "}" else self._number()
            if not self._take("}"):
                raise self._error("a repetition is written {n}, {n,} or {n,m}")
            if high is not None and high < low:
                raise self._error("the repetition's second number is smaller than its first")
        else:
            return inner
        self._take("?")  # a lazy repetition matches the same strings
        if self._peek() and self._peek() in "*+?{":
            raise self._error("a repetition is repeated")
        times = f"{{{low},{'' if high is None else high}}}"
        longest = None if high is None or inner.longest is None else high * inner.longest
        if inner.longest == 0 or high == 0:
            longest = 0
        return StringRule(f"({inner.gbnf}){times}", low * inner.shortest, longest)

    def _number(self) -> int:
        start = self._at
        while self._peek().isascii() and self._peek().isdigit():
            self._at += 1
        digits = self._text[start : self._at]
        if not digits or len(digits) > 4 or int(digits) > MAX_REPEATS:
            raise self._error(f"a repetition's number must be a whole number up to {MAX_REPEATS}")
        return int(digits)

    def _class(self) -> Ranges:
        self._at += 1
        negated = self._take("^")
        found: Ranges = []
        while not self._take("]"):
            first = self._class_item()
            if self._peek() == "-" and self._peek(2) not in ("-]", "-"):
                self._at += 1
                last = self._class_item()
                if len(first) > 1 or len(last) > 1 or first[0][0] != first[0][1] or last[0][0] != last[0][1]:
                    raise self._error("a range goes from one character to another")
                if last[0][0] < first[0][0]:
                    raise self._error("a range's last character comes before its first")
                found.append((first[0][0], last[0][0]))
            else:
                found += first
        return _complement(found) if negated else found

    def _class_item(self) -> Ranges:
        char = self._peek()
        if not char:
            raise self._error("a [ is not closed")
        self._at += 1
        return self._escape(in_class=True) if char == "\\" else [(ord(char), ord(char))]

    def _escape(self, *, in_class: bool) -> Ranges:
        char = self._peek()
        self._at += 1
        if char in ("d", "w", "s"):
            return {"d": _DIGIT, "w": _WORD, "s": _SPACE}[char]
        if char in ("D", "W", "S"):
            return _complement({"D": _DIGIT, "W": _WORD, "S": _SPACE}[char])
        if char == "b" and in_class:
            return [(8, 8)]
        if char in _CONTROL and not (char == "0" and self._peek().isdigit()):
            return [(_CONTROL[char], _CONTROL[char])]
        if char in ("x", "u"):
            n = 2 if char == "x" else 4
            digits = self._peek(n)
            if len(digits) < n or any(each not in "0123456789abcdefABCDEF" for each in digits):
                raise self._error(f"\\{char} needs {n} hexadecimal digits")
            self._at += n
            return [(int(digits, 16), int(digits, 16))]
        if not char or (char.isascii() and char.isalnum()):
            raise self._error(f"\\{char} is not supported")
        return [(ord(char), ord(char))]

    def _one_of(self, ranges: Ranges) -> StringRule:
        """One character, as a JSON string writes it."""
        raw = _complement([*_complement(ranges), *_NOT_RAW])
        alternatives = [f"[{''.join(map(_range, raw))}]"] if raw else []
        alternatives += [quote(text) for code, text in _ESCAPED.items() if any(a <= code <= b for a, b in ranges)]
        if not alternatives:
            raise self._error("no character that a JSON string can hold fits here")
        gbnf = alternatives[0] if len(alternatives) == 1 else f"({' | '.join(alternatives)})"
        return StringRule(gbnf, 1, 1)


def _range(ends: tuple[int, int]) -> str:
    first, last = (f"\\U{code:08X}" for code in ends)
    return first if first == last else f"{first}-{last}"


def _complement(ranges: Ranges) -> Ranges:
    found, start = [], 0
    for first, last in sorted(ranges):
        if first > start:
            found.append((start, first - 1))
        start = max(start, last + 1)
    return [*found, (start, _LAST)] if start <= _LAST else found


def _joined(parts: list[StringRule]) -> StringRule:
    if len(parts) == 1:
        return parts[0]
    limits = [each.longest for each in parts]
    longest = None if None in limits else sum(limit for limit in limits if limit is not None)
    gbnf = " ".join(f"({each.gbnf})" if "|" in each.gbnf else each.gbnf for each in parts)
    return StringRule(gbnf or '""', sum(each.shortest for each in parts), longest)


def _any_of(alternatives: list[StringRule]) -> StringRule:
    if len(alternatives) == 1:
        return alternatives[0]
    limits = [each.longest for each in alternatives]
    longest = None if None in limits else max(limit for limit in limits if limit is not None)
    gbnf = f"({' | '.join(each.gbnf for each in alternatives)})"
    return StringRule(gbnf, min(each.shortest for each in alternatives), longest)
