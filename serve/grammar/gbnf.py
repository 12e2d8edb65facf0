"""GBNF, the syntax in which llama.cpp's clients write grammars, read into trees.

Tested in tests/serve/grammar/test_gbnf.py.
"""

from __future__ import annotations

from slm.serve.grammar.errors import GrammarError
from slm.serve.grammar.tree import ANY, Chars, Choice, Item, Literal, Ref, Repeat

MAX_BYTES = 64 * 1024
"""Most bytes of a grammar's text."""
_MAX_DEPTH = 48
"""Levels of groups within groups."""
_MAX_RULES = 4000
_MAX_REPEATS = 50_000
"""The largest bound of a repetition."""


def parse(text: str) -> dict[str, Choice]:
    """The rules by name. Raises ``GrammarError`` where the text is malformed, too deep or too large."""
    if len(text) > MAX_BYTES or len(text.encode("utf-8", "replace")) > MAX_BYTES:
        raise GrammarError(f"the grammar is longer than {MAX_BYTES} bytes")
    return _Parser(text).grammar()


class _Parser:
    """A recursive-descent parser for the syntax of llama.cpp's grammars/README.md, without references to tokens."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def grammar(self) -> dict[str, Choice]:
        rules: dict[str, Choice] = {}
        self._space(newlines=True)
        while self._at < len(self._text):
            name = self._name()
            self._space(newlines=False)
            self._expect("::=")
            self._space(newlines=True)
            if name in rules:
                raise self._error(f"the rule {name!r} is defined twice")
            rules[name] = self._choice(0)
            if self._at < len(self._text) and self._text[self._at] not in "\r\n":
                raise self._error("a rule must end at the end of its line")
            self._space(newlines=True)
            if len(rules) > _MAX_RULES:
                raise self._error(f"more than {_MAX_RULES} rules")
        return rules

    def _choice(self, depth: int) -> Choice:
        if depth > _MAX_DEPTH:
            raise self._error(f"groups are nested more than {_MAX_DEPTH} deep")
        alternatives = [self._sequence(depth)]
        while self._peek() == "|":
            self._at += 1
            self._space(newlines=True)
            alternatives.append(self._sequence(depth))
        return Choice(tuple(alternatives))

    def _sequence(self, depth: int) -> tuple[Item, ...]:
        items: list[Item] = []
        nested = depth > 0
        while True:
            char = self._peek()
            item: Item
            if char == '"':
                item = self._literal()
            elif char == "[":
                item = self._chars()
            elif char == ".":
                self._at += 1
                item = ANY
            elif char == "(":
                self._at += 1
                self._space(newlines=True)
                item = self._choice(depth + 1)
                self._expect(")")
            elif char and _is_word(char):
                # This cannot be the name of the next rule: at the top level, a line end stands before that.
                item = Ref(self._name())
            else:
                if char == "<":
                    raise self._error("references to tokens are not supported")
                return tuple(items)
            self._space(newlines=nested)
            items.append(self._repeats(item, nested))

    def _repeats(self, item: Item, nested: bool) -> Item:
        n = 0
        while (char := self._peek()) and char in "*+?{":
            n += 1
            if n > 1:
                raise self._error("a repetition of a repetition; put the inner one in parentheses")
            self._at += 1
            if char == "{":
                low, high = self._bounds(nested)
            else:
                low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
            item = Repeat(item, low, high)
            self._space(newlines=nested)
        return item

    def _bounds(self, nested: bool) -> tuple[int, int | None]:
        self._space(newlines=nested)
        low = self._integer()
        self._space(newlines=nested)
        high: int | None = low
        if self._peek() == ",":
            self._at += 1
            self._space(newlines=nested)
            high = self._integer() if self._peek().isdigit() else None
            self._space(newlines=nested)
        self._expect("}")
        if high is not None and high < low:
            raise self._error(f"a repetition of at least {low} and at most {high}")
        return low, high

    def _integer(self) -> int:
        start = self._at
        while self._peek() in tuple("0123456789"):
            self._at += 1
        digits = self._text[start : self._at]
        if not digits:
            raise self._error("a number is missing")
        if len(digits) > 5 or int(digits) > _MAX_REPEATS:
            raise self._error(f"a repetition of more than {_MAX_REPEATS}")
        return int(digits)

    def _literal(self) -> Literal:
        self._at += 1
        out = []
        while (char := self._peek()) != '"':
            if not char or char in "\r\n":
                raise self._error("a text without its closing quote")
            out.append(self._char())
        self._at += 1
        return Literal("".join(out))

    def _chars(self) -> Chars:
        self._at += 1
        negated = self._peek() == "^"
        self._at += negated
        ranges: list[tuple[int, int]] = []
        while (char := self._peek()) != "]":
            if not char or char in "\r\n":
                raise self._error("a set of characters without its closing bracket")
            low = high = ord(self._char())
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                high = ord(self._char())
            if high < low:
                raise self._error("a range of characters that runs backwards")
            ranges.append((low, high))
        self._at += 1
        if not ranges:
            raise self._error("an empty set of characters")
        return Chars(tuple(ranges), negated)

    def _char(self) -> str:
        char = self._text[self._at : self._at + 1]
        self._at += 1
        if char == "\\":
            kind = self._text[self._at : self._at + 1]
            self._at += 1
            if kind in ("x", "u", "U"):
                n = {"x": 2, "u": 4, "U": 8}[kind]
                digits = self._text[self._at : self._at + n]
                if len(digits) < n or any(each not in "0123456789abcdefABCDEF" for each in digits):
                    raise self._error(f"\\{kind} needs {n} hexadecimal digits")
                self._at += n
                code = int(digits, 16)
                if code > 0x10FFFF:
                    raise self._error("a character beyond U+10FFFF")
                char = chr(code)
            else:
                escapes = {"t": "\t", "r": "\r", "n": "\n", "\\": "\\", '"': '"', "[": "[", "]": "]"}
                if kind not in escapes:
                    raise self._error(f"an unknown escape \\{kind}")
                char = escapes[kind]
        if not char or char == "\0" or 0xD800 <= ord(char) <= 0xDFFF:
            raise self._error("NUL and half characters cannot be used")
        return char

    def _name(self) -> str:
        start = self._at
        while (char := self._peek()) and _is_word(char):
            self._at += 1
        if start == self._at:
            raise self._error("a rule name is missing")
        return self._text[start : self._at]

    def _space(self, *, newlines: bool) -> None:
        while char := self._peek():
            if char == "#":
                while self._peek() not in ("", "\r", "\n"):
                    self._at += 1
            elif char in " \t" or (newlines and char in "\r\n"):
                self._at += 1
            else:
                return

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _expect(self, word: str) -> None:
        if not self._text.startswith(word, self._at):
            raise self._error(f"{word!r} is missing")
        self._at += len(word)

    def _error(self, what: str) -> GrammarError:
        line = self._text.count("\n", 0, self._at) + 1
        return GrammarError(f"grammar, line {line}: {what} (at {self._text[self._at : self._at + 20]!r})")


def _is_word(char: str) -> bool:
    return char.isascii() and (char.isalnum() or char == "-")
