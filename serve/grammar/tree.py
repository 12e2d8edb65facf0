"""GBNF grammars as syntax trees.

Tested in tests/serve/grammar/test_gbnf.py.
"""

from __future__ import annotations

from dataclasses import dataclass


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


def references(item: Item) -> set[str]:
    """The rules that an item names."""
    match item:
        case Ref(name):
            return {name}
        case Repeat(inner, _, _):
            return references(inner)
        case Choice(alternatives):
            return {name for each in alternatives for inner in each for name in references(inner)}
    return set()
