"""The forms in which a reply can be constrained, each as a grammar that llguidance has checked.

Tested in tests/serve/test_structured.py, tests/serve/grammar/test_json_schema.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from slm.serve.grammar import gbnf
from slm.serve.grammar.errors import GrammarError
from slm.serve.grammar.json_schema import enforceable
from slm.serve.grammar.lark import lark_of
from slm.serve.grammar.patterns import translated
from slm.serve.grammar.work import check

# As Python's json.dumps writes: what most texts and tool calls that models learned from look like. There is one way to
# write a value, so that much of a reply is forced and need not be computed token by token.
_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_MAX_CHOICES = 10_000
_LARK = re.compile(r"(?m)^\s*(%llguidance\b|start\s*(\[[^\]\n]*\])?\s*:)")
END_OF_THOUGHT = "</think>"


@dataclass(frozen=True, kw_only=True)
class Grammar:
    """A constraint on a reply."""

    rules: str
    """In Lark. The reply's text is the rule ``reply``, or ``start`` where the whole is a client's own."""
    warnings: tuple[str, ...] = ()
    """What was asked for and is not enforced."""

    @property
    def text(self) -> str:
        """What the engine compiles."""
        return as_text(self.rules if _LARK.search(self.rules) else f"start: reply\n{self.rules}")

    @property
    def after_thought(self) -> str:
        """The same for a reply that begins inside its reasoning."""
        return as_text(f"start: THOUGHT SPACE reply\n{THOUGHT}\n{SPACE}\n{self.rules}")


def as_text(lark: str) -> str:
    """A grammar as llguidance takes it. Raises ``GrammarError`` where it costs too much work."""
    return check(json.dumps({"grammars": [{"lark_grammar": lark}]}))


def first_of(mark: str) -> str:
    """The terminal of a text that ends with ``mark`` and has it nowhere before."""
    found = quoted_pattern(mark)
    return f"/(?s:.*){found}/ & ~/(?s:.*){found}(?s:.+)/"


def quoted_pattern(text: str) -> str:
    """A text in a regular expression."""
    return "".join(char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):X}}}" for char in text)


def quoted(text: str) -> str:
    """A text in Lark."""
    return f"/{quoted_pattern(text)}/" if text else '""'


THOUGHT = f"THOUGHT: {first_of(END_OF_THOUGHT)}"
SPACE = r"SPACE: /[ \t\r\n]{0,4}/"


def of_json(schema: Any, *, strict: bool = False, of_object: bool = False) -> Grammar:
    """JSON that is valid under a schema; see ``enforceable``."""
    made, warnings = enforceable(schema, strict=strict, of_object=of_object)
    return Grammar(rules=f"reply: {json_term(made)}", warnings=tuple(warnings))


def json_term(schema: dict[str, Any]) -> str:
    """A schema that ``enforceable`` made, as a term of Lark."""
    return f"%json {json.dumps({**schema, 'x-guidance': _STYLE})}"


def of_grammar(text: str) -> Grammar:
    """A client's own grammar: GBNF, or Lark where it has a rule ``start``."""
    if _LARK.search(text) is None:
        return Grammar(rules=lark_of(gbnf.parse(text)))
    if len(text.encode("utf-8", "replace")) > gbnf.MAX_BYTES:
        raise GrammarError(f"the grammar is longer than {gbnf.MAX_BYTES} bytes")
    return Grammar(rules=text)


def of_regex(pattern: str) -> Grammar:
    """A text that matches a regular expression as a whole."""
    if len(pattern) > gbnf.MAX_BYTES:
        raise GrammarError(f"the pattern is longer than {gbnf.MAX_BYTES} characters")
    try:
        made = translated(pattern.removeprefix("^").removesuffix("$"))
    except GrammarError as error:
        raise GrammarError(f"the pattern {pattern[:100]!r} cannot be enforced: {error}") from None
    return Grammar(rules=f"reply: REPLY\nREPLY: /{made.replace('/', chr(92) + 'x{2F}')}/")


def of_choice(texts: Sequence[str]) -> Grammar:
    """One of some texts."""
    if not texts or not all(texts) or len(texts) > _MAX_CHOICES:
        raise GrammarError(f"a choice needs 1 to {_MAX_CHOICES} texts, none empty")
    return Grammar(rules=f"reply: REPLY\nREPLY: {' | '.join(map(quoted, texts))}")
