"""GBNF as llguidance reads it: in its variant of Lark's syntax.

Where no rule refers to itself, the whole grammar is one regular expression, and its masks cost microseconds. Otherwise
every character is a separate lexeme. A lexer takes the longest lexeme; with longer ones, ``[a-z]* "b"`` would never
find its b. This is exact, and costs some milliseconds a mask; a client that writes Lark itself chooses its lexemes.

Tested in tests/serve/grammar/test_gbnf.py.
"""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

from slm.serve.grammar.errors import GrammarError
from slm.serve.grammar.finite import closure
from slm.serve.grammar.tree import Chars, Choice, Item, Literal, Ref, Repeat, references


def lark_of(rules: dict[str, Choice]) -> str:
    """The rules in Lark; the text of a reply is the rule ``reply``. Raises ``GrammarError`` for rules that are missing
    or have no end."""
    if "root" not in rules:
        raise GrammarError("the grammar has no rule named root")
    uses = {name: references(body) for name, body in rules.items()}
    for name, used in uses.items():
        for ref in sorted(used - rules.keys()):
            raise GrammarError(f"the rule {ref!r}, used in {name!r}, is not defined")
    finite = closure(uses, lambda name, found: _ends(rules[name], found))
    for name in rules:
        if name not in finite:
            raise GrammarError(f"the rule {name!r} can never come to an end")
    used, todo = {"root"}, ["root"]
    while todo:
        new = uses[todo.pop()] - used
        used |= new
        todo += new
    try:
        TopologicalSorter({name: uses[name] for name in used}).prepare()
        prefix = "R"
    except CycleError:
        prefix = "r"
    # Names are llguidance's own: upper case for regular expressions, lower case for rules.
    names = {name: f"{prefix}{i}" for i, name in enumerate(sorted(used))}
    lines = [f"{names[name]}: {_choice(rules[name], names, whole=prefix == 'R')}" for name in sorted(used)]
    return "\n".join([f"reply: {names['root']}", *lines])


def _ends(item: Item, finite: set[str]) -> bool:
    """Whether some text of an item ends, when those of the rules ``finite`` do."""
    match item:
        case Ref(name):
            return name in finite
        case Repeat(inner, low, _):
            return low == 0 or _ends(inner, finite)
        case Choice(alternatives):
            return any(all(_ends(inner, finite) for inner in each) for each in alternatives)
    return True


def _choice(choice: Choice, names: dict[str, str], *, whole: bool) -> str:
    """``whole``: texts may stay whole, because they are inside of one regular expression."""
    sequences = [" ".join(_item(each, names, whole=whole) for each in every) for every in choice.alternatives]
    return " | ".join(each or '""' for each in sequences)


def _item(item: Item, names: dict[str, str], *, whole: bool) -> str:
    match item:
        case Literal(text):
            parts = [f"/{_escaped(text)}/"] if whole and text else [f"/{_escaped(char)}/" for char in text]
            return f"({' '.join(parts)})" if parts else '""'
        case Ref(name):
            return names[name]
        case Repeat(inner, low, high):
            bounds = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((low, high))
            return f"({_item(inner, names, whole=whole)})" + (bounds or f"{{{low},{'' if high is None else high}}}")
        case Chars(ranges, negated):
            if not ranges:
                return "/(?s:.)/"
            inside = "".join(
                f"\\x{{{low:X}}}" if low == high else f"\\x{{{low:X}}}-\\x{{{high:X}}}" for low, high in ranges
            )
            return f"/[{'^' if negated else ''}{inside}]/"
        case Choice():
            return f"({_choice(item, names, whole=whole)})"


def _escaped(text: str) -> str:
    return "".join(char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):X}}}" for char in text)
