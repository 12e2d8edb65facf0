"""The grammar of a reply that may, or must, hold tool calls.

Free text is described by an automaton that reads one character at a time and knows how much of a call's mark has been
read. When the mark is complete, only calls may follow. So a call has the right shape however the mark is split into
tokens, and text without calls stays free.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from slm.serve.grammar.gbnf import check
from slm.serve.grammar.json_schema import BASE_RULES, object_rules
from slm.serve.grammar.tree import MAX_BYTES, GrammarError, quote
from slm.serve.tools.call_form import END_OF_THINK, OWN_FORM, THINK, CallForm

Reasoning = Literal["none", "may", "open"]
"""Whether a reply has reasoning between ``<think>`` and ``</think>``: never, perhaps at its beginning, or it begins
inside of it because the prompt ends with ``<think>``."""

_SPACE = " \t\r\n"

_State = tuple[str, int, int]
_CALL: _State = ("call", 0, 0)


@dataclass(frozen=True, kw_only=True)
class ToolUse:
    """The tools of a request and how they may be used."""

    tools: tuple[tuple[str, object], ...]
    """Those that may be called: name and JSON schema of the parameters."""
    required: bool
    """Whether the reply must be a call."""
    parallel: bool
    """Whether it may hold several."""


def reply_grammar(form: CallForm, use: ToolUse, reasoning: Reasoning) -> str:
    """The checked grammar of a reply. Raises ``GrammarError`` for a schema that is not supported, or too large."""
    definitions, calls = [], []
    for i, (name, schema) in enumerate(use.tools):
        try:
            root, own_rules = object_rules(schema, prefix=f"t{i}-")
        except GrammarError as error:
            raise GrammarError(f"the parameters of {name}: {error}") from None
        definitions.append(own_rules)
        calls.append(f"{quote(name + form.middle)} {root}")
    more = f" ({quote(form.between)} onecall)*" if use.parallel and form.between is not None else ""
    after_mark = form.prefix if use.required else form.prefix[len(form.mark) :]
    rules = [
        *_text_rules(form, reasoning, required=use.required),
        f"calls ::= {quote(after_mark)} onecall{more} {quote(form.suffix)}",
        f"onecall ::= {' | '.join(calls)}",
    ]
    whole = "\n".join(rules) + "\n" + BASE_RULES + "".join(definitions)
    if len(whole) > MAX_BYTES:
        raise GrammarError(f"the tools make a grammar of more than {MAX_BYTES} bytes; send fewer or simpler ones")
    return check(whole)


def after_thought(grammar: str) -> str:
    """The grammar of a reply that begins inside its reasoning, behind which comes what the checked ``grammar`` allows.

    No other rule of it may refer to ``root``. Raises ``GrammarError`` where the whole is too large.
    """
    thought = _Text(OWN_FORM, required=True).rules(("think", 0, 0), root="thought")
    return check("\n".join(["root ::= thought", *thought, grammar.replace("root ::=", "calls ::=", 1)]))


def _text_rules(form: CallForm, reasoning: Reasoning, *, required: bool) -> list[str]:
    """``root`` and the rules of what may stand before ``calls``."""
    text = _Text(form, required=required)
    if not required:
        first: _State = ("think", 0, 0) if reasoning == "open" else ("open", 0, 0)
        return text.rules(first if reasoning != "none" else text.behind_thought)
    calls = f"{quote(form.lead)}? calls" if form.lead else "calls"
    if reasoning == "none":
        return [f"root ::= {calls}"]
    thought = text.rules(("think", 0, 0), root="thought")
    return [f"root ::= {'thought' if reasoning == 'open' else f'{quote(THINK)} thought | {calls}'}", *thought]


class _Text:
    """Text before calls as an automaton. A state is a kind, how many characters of ``<think>`` or ``</think>`` were
    read, and how many of the mark.

    ``open``: at the reply's beginning. ``think``: in the reasoning. ``free``: in text in which calls may come.
    ``start``: only white space has come, and calls may come here only. ``any``: text in which no calls come any more.
    ``gap``: between reasoning and calls that must come. ``call``: the mark is complete.
    """

    def __init__(self, form: CallForm, *, required: bool) -> None:
        self._mark, self._at_start, self._required = form.mark, form.at_start, required

    @property
    def behind_thought(self) -> _State:
        """The state behind the reasoning, or at the beginning of a reply without it."""
        return ("gap" if self._required else "start" if self._at_start else "free"), 0, 0

    def rules(self, first: _State, root: str = "root") -> list[str]:
        """A rule for each state that can be reached from ``first``, whose rule is ``root``."""
        alphabet = sorted({*_SPACE, *THINK, *END_OF_THINK, *self._mark})
        names, todo, out = {first: root}, [first], []
        while todo:
            state = todo.pop()
            ways: dict[_State, list[str]] = {}
            for char in ("", *alphabet):  # "" stands for every other character
                ways.setdefault(self._step(state, char), []).append(char)
            alternatives = []
            gap = f"{_set(list(_SPACE), negated=False)}{{0,4}} calls"
            for target, chars in ways.items():
                if target not in names and target[0] not in ("call", "gap"):
                    names[target] = f"{root}-{len(names)}"
                    todo.append(target)
                others = sorted({*alphabet} - {*chars})
                these = _set(others, negated=True) if "" in chars else _set(chars, negated=False)
                behind = {"call": "calls", "gap": gap}.get(target[0]) or names[target]
                alternatives.append(f"{these} {behind}")
            if not self._required:
                alternatives.append('""')
            out.append(f"{names[state]} ::= {' | '.join(alternatives)}")
        return out

    def _step(self, state: _State, char: str) -> _State:
        kind, n, k = state
        match kind:
            case "think":
                n = _advance(END_OF_THINK, n, char)
                return self.behind_thought if n == len(END_OF_THINK) else ("think", n, 0)
            case "open":
                if n == 0 and char and char in _SPACE:
                    return state
                if char == THINK[n]:
                    if n + 1 == len(THINK):
                        return "think", 0, 0
                    return "open", n + 1, 0 if self._at_start else _advance(self._mark, k, char)
                return self._step(("start" if n == 0 else "any", 0, 0) if self._at_start else ("free", 0, k), char)
            case "start":
                if k == 0 and char and char in _SPACE:
                    return state
                if char != self._mark[k]:
                    return "any", 0, 0
                return _CALL if k + 1 == len(self._mark) else ("start", 0, k + 1)
            case "free":
                k = _advance(self._mark, k, char)
                return _CALL if k == len(self._mark) else ("free", 0, k)
        return "any", 0, 0


def _advance(word: str, n: int, char: str) -> int:
    """How many characters of ``word`` the text ends with, after its first ``n`` and ``char``."""
    read = word[:n] + char if char else ""
    return next((i for i in range(len(read), 0, -1) if read.endswith(word[:i])), 0)


def _set(chars: list[str], *, negated: bool) -> str:
    if not chars:
        return "."
    escaped = "".join(f"\\U{ord(char):08X}" for char in chars)
    return f"[{'^' if negated else ''}{escaped}]"
