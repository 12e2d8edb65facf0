"""Grammars as syntax trees: what a rule may hold, how large it may be, and how it is written in GBNF.

Tested in tests/serve/grammar/test_gbnf.py.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_BYTES = 64 * 1024
"""Of a grammar's text."""
MAX_DEPTH = 48
"""Levels of groups within groups."""
MAX_RULES = 4000
MAX_REPEATS = 1000
"""The largest bound of a repetition (llama.cpp reads more than 2,000 as "no limit")."""
MAX_ELEMENTS = 100_000
"""Characters and references, with repetitions written out."""
MAX_BRANCHES = 4000
"""Places at which a rule may begin."""


class GrammarError(ValueError):
    """The grammar cannot be used; the message says why and where."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One character inside some ranges of code points, or outside them."""

    ranges: tuple[tuple[int, int], ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Literal:
    """A fixed text."""

    text: str


@dataclass(frozen=True, slots=True)
class Ref:
    """The name of a rule."""

    name: str


@dataclass(frozen=True, slots=True)
class Repeat:
    """An item, ``low`` to ``high`` times; None: no limit."""

    item: Item
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Choice:
    """Alternatives, each a sequence."""

    alternatives: tuple[tuple[Item, ...], ...]


Item = Chars | Literal | Ref | Repeat | Choice

ANY = Chars((), negated=True)
"""Any character."""


def quote(text: str) -> str:
    """A text as a GBNF literal. Parentheses are escaped, so that the remaining ones show how deep groups are nested."""
    return '"' + "".join(_escape(char, '"\\()') for char in text) + '"'


def _escape(char: str, special: str) -> str:
    code = ord(char)
    if 0x20 <= code < 0x7F and char not in special:
        return char
    return f"\\x{code:02X}" if code < 0x100 else f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"


def _format(item: Item) -> str:
    match item:
        case Literal(text):
            return quote(text)
        case Ref(name):
            return name
        case Repeat(inner, low, high):
            short = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((low, high))
            bounds = f"{{{low}}}" if low == high else f"{{{low},{'' if high is None else high}}}"
            # In some dialects a repetition after a literal repeats its last character. A group is clear in all of them.
            return (f"({_format(inner)})" if isinstance(inner, Literal) else _format(inner)) + (short or bounds)
        case Chars(ranges, negated):
            if not ranges:
                return "."
            special = "[]()\\^-"
            formatted = [
                _escape(chr(low), special) + (f"-{_escape(chr(high), special)}" if high > low else "")
                for low, high in ranges
            ]
            return f"[{'^' if negated else ''}{''.join(formatted)}]"
        case Choice():
            return f"({format_choice(item)})"


def format_choice(choice: Choice) -> str:
    """A rule's body in GBNF."""
    return " | ".join(" ".join(map(_format, each)) or '""' for each in choice.alternatives)
