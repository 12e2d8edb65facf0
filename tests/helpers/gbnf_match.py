"""Whether a text belongs to a grammar, without llama.cpp: for tests that ask about many texts."""

from __future__ import annotations

from slm.serve.grammar.gbnf import _Parser
from slm.serve.grammar.tree import Chars, Choice, Item, Literal, Ref, Repeat


class Matcher:
    """All ends at which a rule may stop, from each place in the text."""

    def __init__(self, grammar: str) -> None:
        self._rules = _Parser(grammar).grammar()

    def __call__(self, text: str) -> bool:
        self._text = text
        self._known: dict[tuple[str, int], set[int]] = {}
        return len(text) in self._rule("root", 0)

    def _rule(self, name: str, start: int) -> set[int]:
        if (name, start) not in self._known:
            self._known[name, start] = self._ends(self._rules[name], start)
        return self._known[name, start]

    def _ends(self, item: Item, start: int) -> set[int]:
        match item:
            case Literal(text):
                return {start + len(text)} if self._text.startswith(text, start) else set()
            case Chars(ranges, negated):
                if start >= len(self._text):
                    return set()
                inside = any(low <= ord(self._text[start]) <= high for low, high in ranges)
                return {start + 1} if inside != negated else set()
            case Ref(name):
                return self._rule(name, start)
            case Choice(alternatives):
                return set().union(*(self._sequence(each, start) for each in alternatives))
            case Repeat(inner, low, high):
                reached, out, n = {start}, {start} if low == 0 else set(), 0
                while reached and (high is None or n < high):
                    reached, n = set().union(*(self._ends(inner, each) for each in reached)), n + 1
                    if high is None and n > low:
                        reached -= out
                    if n >= low:
                        out |= reached
                return out
        raise AssertionError(item)

    def _sequence(self, items: tuple[Item, ...], start: int) -> set[int]:
        reached = {start}
        for each in items:
            reached = set().union(*(self._ends(each, at) for at in reached)) if reached else set()
        return reached
