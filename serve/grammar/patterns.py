"""ECMA's regular expressions, in which JSON Schema writes ``pattern``, in the syntax that llguidance reads; and the
expressions of ``format``.

The two differ in what a backslash may stand before, inside of classes, and where a brace is a brace. Laziness changes
nothing about which texts match. Looking ahead or behind and references back are refused: they are not regular.

Tested in tests/serve/grammar/test_patterns.py.
"""

from __future__ import annotations

import re

from slm.serve.grammar.errors import GrammarError

_HOST = r"[A-Za-z0-9]{1,20}(-[A-Za-z0-9]{1,20}){0,1}(\.[A-Za-z0-9]{1,20}(-[A-Za-z0-9]{1,20}){0,1})"
_DATE = r"[12]\d{3}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8]))"
_TIME = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)"
_IPV4 = r"(25[0-5]|2[0-4]\d|1\d{2}|[1-9]?\d)"
_DURATION = r"P(\d{1,3}W|\d{1,3}D(T\d{1,2}H)?|T(\d{1,2}H(\d{1,2}M(\d{1,2}S)?)?|\d{1,2}M(\d{1,2}S)?|\d{1,2}S))"
_PATH = r"[A-Za-z0-9._~-]{1,40}(/[A-Za-z0-9._~-]{0,40}){0,8}(\?[A-Za-z0-9._~=&-]{0,80})?"
_URI = rf"https?://{_HOST}{{1,3}}(:\d{{1,5}})?(/{_PATH})?/?"
_EMAIL = rf"[A-Za-z0-9_+-]{{1,20}}(\.[A-Za-z0-9_+-]{{1,20}}){{0,3}}@{_HOST}{{1,3}}"
_POINTER = r"(/([^/~\x00-\x1f]|~[01]){0,60}){0,20}"
FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"({_DATE})T({_TIME})",
    "duration": _DURATION,
    "uuid": r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "email": _EMAIL,
    "idn-email": _EMAIL,
    "hostname": rf"{_HOST}{{0,3}}",
    "idn-hostname": rf"{_HOST}{{0,3}}",
    "ipv4": rf"{_IPV4}(\.{_IPV4}){{3}}",
    "ipv6": r"[0-9a-f]{1,4}(:[0-9a-f]{1,4}){7}",
    "uri": _URI,
    "iri": _URI,
    "uri-reference": rf"({_URI}|/?{_PATH})",
    "iri-reference": rf"({_URI}|/?{_PATH})",
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(0|[1-9]\d{{0,3}})(#|{_POINTER})",
}
"""Each is a part of what its standard allows: dates from 1000 to 2999 without 29 February, whole IPv6 addresses, http
addresses."""

_QUANTIFIER = re.compile(r"[*+?]|\{\d+(,\d*)?\}")
_CLASSES = "dDwWsS"
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}


def translated(pattern: str) -> str:
    """The pattern in llguidance's syntax. Raises ``GrammarError`` for what is not regular or not ECMA's."""
    return _Translator(pattern).whole()


class _Translator:
    def __init__(self, pattern: str) -> None:
        self._text, self._at = pattern, 0

    def whole(self) -> str:
        out = []
        while self._at < len(self._text):
            char = self._text[self._at]
            found = _QUANTIFIER.match(self._text, self._at)
            if found:
                out.append(found[0])
                self._at = found.end()
                self._at += self._text[self._at : self._at + 1] == "?"
            elif char == "\\":
                out.append(self._escape(in_class=False))
            elif char == "[":
                out.append(self._class())
            elif char == "(":
                out.append(self._group())
            elif char in "{}]":
                out.append(f"\\{char}")
                self._at += 1
            else:
                out.append(char)
                self._at += 1
        return "".join(out)

    def _group(self) -> str:
        text, at = self._text, self._at
        for sign in ("(?=", "(?!", "(?<=", "(?<!"):
            if text.startswith(sign, at):
                raise GrammarError("it looks ahead or behind")
        named = re.compile(r"\(\?P?<\w+>|\(\?:").match(text, at)
        if text.startswith("(?", at) and named is None:
            raise GrammarError(f"a group begins with {text[at : at + 4]!r}")
        self._at = named.end() if named else at + 1
        return "(?:" if named else "("

    def _class(self) -> str:
        self._at += 1
        out = ["["]
        if self._text.startswith("^", self._at):
            out.append("^")
            self._at += 1
        if self._text.startswith("]", self._at):
            raise GrammarError("a class is empty")
        while self._at < len(self._text):
            char = self._text[self._at]
            if char == "]":
                self._at += 1
                return "".join([*out, "]"])
            if char == "\\":
                out.append(self._escape(in_class=True))
                continue
            # The other syntax has sets within sets: [ & ~ and a doubled - mean something there.
            special = char in "[&~^" or (char == "-" and out[-1] == "-")
            out.append(f"\\{char}" if special else char)
            self._at += 1
        raise GrammarError("a class has no end")

    def _escape(self, *, in_class: bool) -> str:
        text = self._text
        char = text[self._at + 1 : self._at + 2]
        self._at += 2
        if char and char in _CLASSES:
            return f"\\{char}"
        if char in ("p", "P"):
            found = re.compile(r"\{[\w=]+\}").match(text, self._at)
            if found is None:
                raise GrammarError(f"\\{char} needs a property in braces")
            self._at = found.end()
            return f"\\{char}{found[0]}"
        if char in ("x", "u"):
            return self._code(char)
        if char == "c":
            letter = text[self._at : self._at + 1]
            self._at += 1
            if not (letter.isascii() and letter.isalpha()):
                raise GrammarError("\\c needs a letter")
            return f"\\x{{{ord(letter) % 32:X}}}"
        if char == "b" and in_class:
            return "\\x{8}"
        if char in _CONTROLS and not (char == "0" and text[self._at : self._at + 1].isdigit()):
            return f"\\x{{{_CONTROLS[char]:X}}}"
        if not char or char.isalnum():
            raise GrammarError(f"\\{char} has no equivalent")
        return f"\\x{{{ord(char):X}}}"

    def _code(self, kind: str) -> str:
        """The character of ``\\x41``, ``\\u0041``, ``\\u{41}`` or a pair of surrogates."""
        rest = self._text[self._at :]
        pair = re.match(r"([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})", rest) if kind == "u" else None
        if pair:
            self._at += pair.end()
            return f"\\x{{{0x10000 + (int(pair[1], 16) % 0x400) * 0x400 + int(pair[2], 16) % 0x400:X}}}"
        found = re.match(r"[0-9a-fA-F]{2}" if kind == "x" else r"[0-9a-fA-F]{4}|\{[0-9a-fA-F]{1,6}\}", rest)
        if found is None or 0xD800 <= (code := int(found[0].strip("{}"), 16)) <= 0xDFFF or code > 0x10FFFF:
            raise GrammarError(f"\\{kind} does not name a character")
        self._at += found.end()
        return f"\\x{{{code:X}}}"
