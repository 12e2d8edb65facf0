"""What must hold of a grammar's rules so that llama.cpp can expand them: all defined, none endless, few branches."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

from serve.grammar.tree import MAX_BRANCHES, MAX_ELEMENTS, Chars, Choice, GrammarError, Item, Literal, Ref, Repeat


def check_rules(rules: dict[str, Choice]) -> None:
    """Raises ``GrammarError`` for rules that would hang or exhaust the process."""
    _Checker(rules).check()


class _Checker:
    def __init__(self, rules: dict[str, Choice]) -> None:
        self._rules = rules
        self._nullable: set[str] = set()
        self._finite: set[str] = set()
        self._branches: dict[str, int] = {}

    def check(self) -> None:
        if "root" not in self._rules:
            raise GrammarError("the grammar has no rule named root")
        for name, body in self._rules.items():
            for ref in _refs(body):
                if ref not in self._rules:
                    raise GrammarError(f"the rule {ref!r}, used in {name!r}, is not defined")
        if sum(_size(body) for body in self._rules.values()) > MAX_ELEMENTS:
            raise GrammarError(f"the grammar has more than {MAX_ELEMENTS} elements, repetitions written out")
        self._grow(self._nullable, self._may_be_empty)
        self._grow(self._finite, self._may_end)
        for name in self._rules:
            if name not in self._finite:
                raise GrammarError(f"the rule {name!r} can never come to an end")
        for name, body in self._rules.items():
            self._check_repeats(name, body)
        try:
            left = {name: self._left(body) for name, body in self._rules.items()}
            order = list(TopologicalSorter(left).static_order())
        except CycleError as error:
            way = " -> ".join(reversed(error.args[1][:8]))
            raise GrammarError(f"the grammar refers to itself on the left, without a character: {way}") from None
        for name in order:
            self._branches[name] = n = self._count(self._rules[name])
            if n > MAX_BRANCHES:
                raise GrammarError(f"the rule {name!r} can begin in more than {MAX_BRANCHES} ways")

    def _grow(self, found: set[str], holds) -> None:
        # A rule is looked at again only when something that it uses has changed.
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
                    raise GrammarError(f"the rule {name!r} repeats without limit what may be empty")
                self._check_repeats(name, inner)
            case Choice(alternatives):
                for each in alternatives:
                    for inner in each:
                        self._check_repeats(name, inner)

    def _left(self, item: Item) -> set[str]:
        """Rules that may begin where the item begins."""
        match item:
            case Ref(name):
                return {name}
            case Repeat(inner, _, high):
                return self._left(inner) if high != 0 else set()
            case Choice(alternatives):
                out: set[str] = set()
                for each in alternatives:
                    for inner in each:
                        out |= self._left(inner)
                        if not self._may_be_empty(inner):
                            break
                return out
        return set()

    def _count(self, item: Item) -> int:
        """At how many places the item may begin, at most."""
        match item:
            case Ref(name):
                return self._branches[name]
            case Repeat(inner, _, high):
                n = self._count(inner)
                return n * (high or 1) if self._may_be_empty(inner) else n
            case Choice(alternatives):
                total = 0
                for each in alternatives:
                    for inner in each:
                        total += self._count(inner)
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
    match item:
        case Literal(text):
            return len(text)
        case Repeat(inner, low, high):
            # A group becomes a rule of its own; what is repeated is a reference to it.
            own, times = _size(inner), max(low + 1, high or 0)
            return own + times if isinstance(inner, Choice) else own * times
        case Choice(alternatives):
            return sum(_size(inner) for each in alternatives for inner in each) + len(alternatives)
    return 1
