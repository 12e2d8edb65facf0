"""Grammars as trees: what a rule may hold, the limits, and how it is written in GBNF."""

from __future__ import annotations

from dataclasses import dataclass

MAX_BYTES = 64 * 1024
MAX_DEPTH = 48
MAX_RULES = 4000
MAX_REPEATS = 1000
"""Most that a bounded repetition may ask for (llama.cpp reads more than 2,000 as "no limit")."""
MAX_ELEMENTS = 100_000
"""Most characters and references, with repetitions written out."""
MAX_BRANCHES = 4000
"""Most places at which a rule may begin."""


class GrammarError(ValueError):
    """The grammar cannot be used; the message says why and where."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of some ranges, or outside them."""

    ranges: tuple[tuple[int, int], ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Literal:
    text: str


@dataclass(frozen=True, slots=True)
class Ref:
    name: str


@dataclass(frozen=True, slots=True)
class Repeat:
    item: Item
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Choice:
    """Alternatives, each a sequence."""

    alternatives: tuple[tuple[Item, ...], ...]


Item = Chars | Literal | Ref | Repeat | Choice

ANY = Chars((), negated=True)


def quote(text: str) -> str:
    """A text as a GBNF literal. Parentheses are escaped so that those that are left tell how deep it is nested."""
    return '"' + "".join(_escape(char, '"\\()') for char in text) + '"'


def _escape(char: str, special: str) -> str:
    code = ord(char)
    if 0x20 <= code < 0x7F and char not in special:
        return char
    return f"\\x{code:02X}" if code < 0x100 else f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"


def _spell(item: Item) -> str:
    match item:
        case Literal(text):
            return quote(text)
        case Ref(name):
            return name
        case Repeat(inner, low, high):
            short = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((low, high))
            bounds = f"{{{low}}}" if low == high else f"{{{low},{'' if high is None else high}}}"
            # Repeating a literal repeats its last character in some dialects; a group is clear in all.
            return (f"({_spell(inner)})" if isinstance(inner, Literal) else _spell(inner)) + (short or bounds)
        case Chars(ranges, negated):
            if not ranges:
                return "."
            special = "[]()\\^-"
            spelled = [
                _escape(chr(low), special) + (f"-{_escape(chr(high), special)}" if high > low else "")
                for low, high in ranges
            ]
            return f"[{'^' if negated else ''}{''.join(spelled)}]"
        case Choice():
            return f"({spell_choice(item)})"


def spell_choice(choice: Choice) -> str:
    return " | ".join(" ".join(map(_spell, each)) or '""' for each in choice.alternatives)
