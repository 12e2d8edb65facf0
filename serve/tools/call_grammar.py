"""The grammar of a reply that may, or must, hold tool calls.

Text before a call is free until the mark that begins calls is complete; from there on only calls may follow. So a call
has the right shape however the mark is split into tokens, and text without calls stays free.
"""

from __future__ import annotations

from dataclasses import dataclass

from slm.data.chat.content_spans import grammar_name
from slm.serve.grammar.errors import GrammarError
from slm.serve.grammar.forms import SPACE, THOUGHT, Grammar, as_text, first_of, json_term, quoted, quoted_pattern
from slm.serve.grammar.json_schema import enforceable
from slm.serve.tools.call_form import END_OF_THINK, THINK, CallForm, Reasoning
from slm.serve.tools.channels import Begins, call_rules
from slm.serve.tools.written_arguments import ArgumentsGrammar, marked

_ANY = "(?s:.*)"
_BLANK = r"[ \t\r\n]*"
_UNCLOSED = f"UNCLOSED: /{_ANY}/ & ~/{_ANY}{quoted_pattern(END_OF_THINK)}{_ANY}/"
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
_MAX_BYTES = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class CallableTool:
    """A function that a reply may call."""

    name: str
    parameters: object
    """The JSON schema; empty for a function without parameters."""
    strict: bool = False
    """Whether a schema that cannot be enforced is refused, instead of being relaxed."""


@dataclass(frozen=True, kw_only=True)
class ToolUse:
    """The tools of a request and how they may be used."""

    tools: tuple[CallableTool, ...]
    """Those that may be called."""
    required: bool
    """Whether the reply must be a call."""
    parallel: bool
    """Whether it may hold several."""


def reply_grammar(
    form: CallForm, use: ToolUse, reasoning: Reasoning, content: Grammar | None = None, begins: Begins = ""
) -> tuple[str, tuple[str, ...]]:
    """The checked grammar of a reply, and what of the schemas is not enforced.

    ``content``: what a reply without calls must be. ``begins``: where it begins, if the model has channels. Raises
    ``GrammarError`` for a schema that cannot be used, or tools that are too large.
    """

    def part(text: str) -> str:
        return marked(text, form.controls)

    calls, arguments, warnings = [], [], [*(content.warnings if content is not None else ())]
    for i, tool in enumerate(use.tools):
        try:
            schema, relaxed = enforceable(tool.parameters or _NO_PARAMETERS, strict=tool.strict, of_object=True)
            if form.fields is None:
                of_call = None
            else:
                made = ArgumentsGrammar(form.fields, form.controls, prefix=f"a{i}", strict=tool.strict)
                of_call = [f"arguments{i}: {made.whole(schema)}", *made.rules]
                relaxed = [*relaxed, *made.warnings]
        except GrammarError as error:
            raise GrammarError(f"the parameters of {tool.name}: {error}") from None
        warnings += [f"the parameters of {tool.name}: {each}" for each in relaxed]
        middle = part(form.middle)
        if form.behind_name is not None:
            fixed, pattern = form.behind_name
            middle = f"{part(fixed)} /{pattern}/ {middle}"
        calls.append(f"{quoted(tool.name)} {middle} arguments{i}")
        arguments += of_call or [f"arguments{i}: {json_term(schema)}"]
    more = f" ({part(form.between)} onecall)*" if use.parallel and form.between is not None else ""
    after_mark = form.prefix if use.required else form.prefix[len(form.mark) :]
    if begins:
        names = [tool.name for tool in use.tools]
        reasons = reasoning != "none"
        rules = call_rules(names, begins=begins, required=use.required, reasons=reasons, content=content)
    else:
        rules = [
            *_beginning(form, use, reasoning, content),
            f"calls: {part(after_mark)} onecall{more} {part(form.suffix)}",
            f"onecall: {' | '.join(calls)}",
        ]
    lark = "\n".join([*rules, *arguments])
    if len(lark) > _MAX_BYTES:
        raise GrammarError(f"the tools make a grammar of more than {_MAX_BYTES} bytes; send fewer or simpler ones")
    return as_text(lark), tuple(warnings)


def _beginning(form: CallForm, use: ToolUse, reasoning: Reasoning, content: Grammar | None) -> list[str]:
    """``start`` and what may stand before ``calls``."""
    if use.required:
        lead = f"{quoted(form.lead)}? calls" if form.lead else "calls"
        start = {
            "none": lead,
            "open": "THOUGHT SPACE calls",
            "may": f"{quoted(THINK)} THOUGHT SPACE calls | {lead}",
        }[reasoning]
        return [f"start: {start}", *([] if reasoning == "none" else [THOUGHT, SPACE])]
    if form.mark in form.controls:
        return _before_control(grammar_name(form.mark), reasoning, content)
    mark = quoted_pattern(form.mark)
    if content is not None:
        if form.at_start:
            raise GrammarError("this model's calls begin like any JSON: response_format and tools exclude each other")
        head, text = f"/{_BLANK}{mark}/", None
    elif form.at_start:
        head, text = f"/{_BLANK}{mark}/", f"/{_ANY}/ & ~/{_BLANK}{mark}{_ANY}/"
    else:
        head, text = first_of(form.mark), f"/{_ANY}/ & ~/{_ANY}{mark}{_ANY}/"
    plain = "reply" if text is None else "TEXT"
    rules = [f"HEAD: {head}", *([] if text is None else [f"TEXT: {text}"])]
    rules += [content.rules] if content is not None else []
    behind = f"{plain} | HEAD calls"
    if reasoning == "none":
        return [f"start: {behind}", *rules]
    rules += [THOUGHT, _UNCLOSED, f"behind: {'SPACE ' if text is None else ''}({behind})"]
    rules += [SPACE] if text is None else []
    if reasoning == "open":
        return ["start: THOUGHT behind | UNCLOSED", *rules]
    thinks = f"/{_BLANK}{quoted_pattern(THINK)}{_ANY}/"
    first = "reply" if text is None else "FIRST"
    rules += [] if text is None else [f"FIRST: TEXT & ~{thinks}"]
    return [
        f"start: OPENS THOUGHT behind | OPENS UNCLOSED | {first} | BEGIN calls",
        f"OPENS: /{_BLANK}{quoted_pattern(THINK)}/",
        f"BEGIN: HEAD & ~{thinks}",
        *rules,
    ]


def _before_control(mark: str, reasoning: Reasoning, content: Grammar | None) -> list[str]:
    """The same where the calls begin with a control token, which no text holds."""
    plain = "FREE" if content is None else "reply"
    rules = [f"FREE: /{_ANY}/", *([] if content is None else [content.rules])]
    behind = f"{plain} | FREE {mark} calls"
    if reasoning == "none":
        return [f"start: {behind}", *rules]
    blank, rules = ("", rules) if content is None else ("SPACE ", [*rules, SPACE])
    rules += [THOUGHT, _UNCLOSED, f"behind: {blank}({behind})"]
    if reasoning == "open":
        return ["start: THOUGHT behind | UNCLOSED", *rules]
    first = "FIRST" if content is None else "reply"
    return [
        f"start: OPENS THOUGHT behind | OPENS UNCLOSED | {first} | FIRST {mark} calls",
        f"OPENS: /{_BLANK}{quoted_pattern(THINK)}/",
        f"FIRST: /{_ANY}/ & ~/{_BLANK}{quoted_pattern(THINK)}{_ANY}/",
        *rules,
    ]
