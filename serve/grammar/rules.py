"""Whether llama.cpp can expand a grammar's rules: all are defined, none is endless, none branches too much.

Tested in tests/serve/grammar/test_gbnf.py.
"""

from __future__ import annotations

from collections.abc import Callable
from graphlib import CycleError, TopologicalSorter

from slm.serve.grammar.tree import MAX_BRANCHES, MAX_ELEMENTS, Chars, Choice, GrammarError, Item, Literal, Ref, Repeat


def check_rules(rules: dict[str, Choice]) -> None:
    """Raises ``GrammarError`` for rules that would hang or exhaust the process."""
    _Checker(rules).check()


class _Checker:
    """The properties of rules that refer to each other, found by repetition until nothing changes."""

    def __init__(self, rules: dict[str, Choice]) -> None:
        self._rules = rules
        self._nullable: set[str] = set()
        """Rules that match the empty text."""
        self._finite: set[str] = set()
        """Rules that match some finite text."""
        self._branches: dict[str, int] = {}
        """Per rule, at how many places it may begin."""

    def check(self) -> None:
        if "root" not in self._rules:
            raise GrammarError("the grammar has no rule named root")
        for name, body in self._rules.items():
            for ref in _refs(body):
                if ref not in self._rules:
                    raise GrammarError(f"the rule {ref!r}, used in {name!r}, is not defined")
        if sum(_size(body) for body in self._rules.values()) > MAX_ELEMENTS:
            raise GrammarError(f"the grammar has more than {MAX_ELEMENTS} elements, repetitions written out")
        self._close(self._nullable, self._may_be_empty)
        self._close(self._finite, self._may_end)
        for name in self._rules:
            if name not in self._finite:
                raise GrammarError(f"the rule {name!r} can never come to an end")
        for name, body in self._rules.items():
            self._check_repeats(name, body)
        try:
            leftmost = {name: self._leftmost(body) for name, body in self._rules.items()}
            order = list(TopologicalSorter(leftmost).static_order())
        except CycleError as error:
            cycle = " -> ".join(reversed(error.args[1][:8]))
            raise GrammarError(f"the grammar refers to itself on the left, without a character: {cycle}") from None
        for name in order:
            self._branches[name] = n = self._n_branches(self._rules[name])
            if n > MAX_BRANCHES:
                raise GrammarError(f"the rule {name!r} can begin in more than {MAX_BRANCHES} ways")

    def _close(self, found: set[str], holds: Callable[[Item], bool]) -> None:
        """Adds to ``found`` every rule for which ``holds``, which itself depends on ``found``."""
        # A rule is checked again only when a rule that it uses was added.
        users: dict[str, set[str]] = {name: set() for name in self._rules}
        for name, body in self._rules.items():
            for ref in _refs(body):
                users[ref].add(name)
        todo = list(self._rules)
        while todo:
            name = todo.pop()
            if name not in found and holds(self._rules[name]):
                found.add(name)
                todo.extend(users[name])

    def _may_be_empty(self, item: Item) -> bool:
        match item:
            case Chars():
                return False
            case Literal(text):
                return not text
            case Ref(name):
                return name in self._nullable
            case Repeat(inner, low, _):
                return low == 0 or self._may_be_empty(inner)
            case Choice(alternatives):
                return any(all(map(self._may_be_empty, each)) for each in alternatives)

    def _may_end(self, item: Item) -> bool:
        match item:
            case Ref(name):
                return name in self._finite
            case Repeat(inner, low, _):
                return low == 0 or self._may_end(inner)
            case Choice(alternatives):
                return any(all(map(self._may_end, each)) for each in alternatives)
        return True

    def _check_repeats(self, name: str, item: Item) -> None:
        match item:
            case Repeat(inner, _, high):
                if high is None and self._may_be_empty(inner):
                    raise GrammarError(f"the rule {name!r} repeats something that may be empty without a limit")
                self._check_repeats(name, inner)
            case Choice(alternatives):
                for each in alternatives:
                    for inner in each:
                        self._check_repeats(name, inner)

    def _leftmost(self, item: Item) -> set[str]:
        """Rules that may stand at the item's beginning."""
        match item:
            case Ref(name):
                return {name}
            case Repeat(inner, _, high):
                return self._leftmost(inner) if high != 0 else set()
            case Choice(alternatives):
                out: set[str] = set()
                for each in alternatives:
                    for inner in each:
                        out |= self._leftmost(inner)
                        if not self._may_be_empty(inner):
                            break
                return out
        return set()

    def _n_branches(self, item: Item) -> int:
        """At how many places the item may begin; an upper bound."""
        match item:
            case Ref(name):
                return self._branches[name]
            case Repeat(inner, _, high):
                n = self._n_branches(inner)
                return n * (high or 1) if self._may_be_empty(inner) else n
            case Choice(alternatives):
                total = 0
                for each in alternatives:
                    for inner in each:
                        total += self._n_branches(inner)
                        if not self._may_be_empty(inner):
                            break
                return min(total, 10 * MAX_BRANCHES)
        return 1


def _refs(item: Item) -> set[str]:
    match item:
        case Ref(name):
            return {name}
        case Repeat(inner, _, _):
            return _refs(inner)
        case Choice(alternatives):
            return {ref for each in alternatives for inner in each for ref in _refs(inner)}
    return set()


def _size(item: Item) -> int:
    """Characters and references, with repetitions written out."""
    match item:
        case Literal(text):
            return len(text)
        case Repeat(inner, low, high):
            # llama.cpp makes a group a rule of its own and repeats only the reference to it.
            own, times = _size(inner), max(low + 1, high or 0)
            return own + times if isinstance(inner, Choice) else own * times
        case Choice(alternatives):
            return sum(_size(inner) for each in alternatives for inner in each) + len(alternatives)
    return 1
