"""What tool calls look like in a model's replies, found by rendering some with its chat template.

A template that knows tools writes a call as a fixed frame around the function's name and its arguments in JSON, for
example ``<tool_call> {"name": "NAME", "arguments": {...}} </tool_call>``. The frame is what stands around the name and
the arguments of a call that is rendered as a trial. Where there is no such frame (the template does not know tools, or
writes control tokens into it), calls have slm's form, and tools are described in the system message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from slm.data.chat.template import ChatTemplate, TemplateRefusesError

THINK, END_OF_THINK = "<think>", "</think>"

_NAMES = ("probe_first", "probe_second")
_KEY, _VALUE, _RESULT = "probe_key", "probe value", "probe result"
_ARGUMENTS = re.compile(rf'\{{\s*"{_KEY}"\s*:\s*"{_VALUE}"\s*\}}')
_OPEN_THOUGHT = re.compile(rf"{THINK}\s*({END_OF_THINK}\s*)?\Z")
_MARK = re.compile(r"[^\s{\[\"]{3,}")


@dataclass(frozen=True, kw_only=True)
class CallForm:
    """The frame of a model's calls: ``prefix`` NAME ``middle`` ARGUMENTS ``between`` NAME ... ``suffix``."""

    prefix: str
    """Without white space in front."""
    middle: str
    suffix: str
    between: str | None
    """From behind one call's arguments to the next call's name; None where a reply holds one call at most."""
    lead: str = ""
    """White space that the template writes before the prefix."""
    own: bool = False
    """Whether it is our own form, of which the template knows nothing."""

    @property
    def at_start(self) -> bool:
        """Whether the calls are recognised only at a reply's beginning, because they begin like any JSON."""
        return _MARK.match(self.prefix) is None

    @property
    def mark(self) -> str:
        """The beginning of the prefix that tells calls from text."""
        found = _MARK.match(self.prefix)
        return found[0] if found else self.prefix


OWN_FORM = CallForm(
    prefix='<tool_call>\n{"name": "',
    middle='", "arguments": ',
    suffix="}\n</tool_call>",
    between='}\n</tool_call>\n<tool_call>\n{"name": "',
    own=True,
)
"""The form for templates that know no tools. Many open models were trained on it."""


def call_form(template: ChatTemplate) -> CallForm:
    """The form of the calls in this template; ``OWN_FORM`` where it knows none, or none that could be forced."""
    asked = {"role": "user", "content": "x"}
    tools = [_tool(name) for name in _NAMES]
    try:
        prompt = _OPEN_THOUGHT.sub("", template.text([asked], tools, prompt=True))
        one = template.text([asked, _calling(_NAMES[:1])], tools)
        answered = [asked, _calling(_NAMES[:1]), _answer(0)]
        if _RESULT not in template.text(answered, tools, prompt=True) or _NAMES[0] not in prompt:
            return OWN_FORM
    except TemplateRefusesError:
        return OWN_FORM
    found = _frames(prompt, one, 1, template)
    if found is None:
        return OWN_FORM
    prefix, middle, suffix = found
    try:
        several = _frames(prompt, template.text([asked, _calling(_NAMES)], tools), 2, template)
    except TemplateRefusesError:
        several = None
    between = several[2] if several is not None and several[:2] == (prefix, middle) and several[4] == suffix else None
    bare = prefix.lstrip()
    return CallForm(prefix=bare, middle=middle, suffix=suffix, between=between, lead=prefix[: len(prefix) - len(bare)])


def _frames(prompt: str, text: str, n: int, template: ChatTemplate) -> tuple[str, ...] | None:
    """What stands around the names and arguments of the ``n`` calls in a reply, in order; None where it is no frame of
    fixed text."""
    if not text.startswith(prompt):
        return None
    rest = text[len(prompt) :].rpartition(END_OF_THINK)[2]
    frames = []
    for name in _NAMES[:n]:
        before, found, rest = rest.partition(name)
        arguments = _ARGUMENTS.search(rest)
        if not found or arguments is None:
            return None
        frames += [before, rest[: arguments.start()]]
        rest = rest[arguments.end() :]
    end = template.first_control(rest)
    frames.append((rest if end is None else rest[:end]).rstrip())
    usable = all(each.strip() and template.first_control(each) is None for each in frames[:-1])
    return tuple(frames) if usable and not any(_KEY in each or "probe_" in each for each in frames) else None


def _tool(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {_KEY: {"type": "string"}}, "required": [_KEY]}
    return {"type": "function", "function": {"name": name, "description": "x", "parameters": parameters}}


def _calling(names: Sequence[str]) -> dict[str, Any]:
    calls = [
        {"id": f"probe000{i}", "type": "function", "function": {"name": name, "arguments": {_KEY: _VALUE}}}
        for i, name in enumerate(names)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def _answer(i: int) -> dict[str, Any]:
    return {"role": "tool", "name": _NAMES[i], "tool_call_id": f"probe000{i}", "content": _RESULT}


def in_own_form(messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The conversation for a template that knows no tools: they are described in the system message, calls are text of
    the assistant, and results are text of the user."""
    out: list[dict[str, Any]] = []
    if tools:
        listed = "\n".join(json.dumps(each, ensure_ascii=False) for each in tools)
        out.append(
            {
                "role": "system",
                "content": f"You can call these functions:\n<tools>\n{listed}\n</tools>\nTo call one, answer with "
                '<tool_call>\n{"name": NAME, "arguments": OBJECT}\n</tool_call>',
            }
        )
    for message in messages:
        role, content = message["role"], message["content"]
        if role == "tool":
            role, content = "user", f"<tool_response>\n{content}\n</tool_response>"
        elif message.get("tool_calls"):
            calls = (each["function"] for each in message["tool_calls"])
            said = [_own_call(each["name"], each["arguments"]) for each in calls]
            content = "\n".join([content, *said] if content else said)
        after_result = role == "user" and out and out[-1]["role"] == "user" and "<tool_response>" in out[-1]["content"]
        if after_result:
            out[-1] = {**out[-1], "content": f"{out[-1]['content']}\n{content}"}
        elif role == "system" and len(out) == 1 and tools:
            out[0] = {"role": "system", "content": f"{content}\n\n{out[0]['content']}"}
        else:
            kept = {key: value for key, value in message.items() if key not in ("tool_calls", "tool_call_id")}
            out.append({**kept, "role": role, "content": content})
    return out


def without_system(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The conversation with its first, system message as the beginning of the user's first one."""
    first, *rest = messages
    at = next((i for i, each in enumerate(rest) if each["role"] == "user"), None)
    if at is None:
        return [{"role": "user", "content": first["content"]}, *rest]
    return [*rest[:at], {**rest[at], "content": f"{first['content']}\n\n{rest[at]['content']}"}, *rest[at + 1 :]]


def _own_call(name: str, arguments: Any) -> str:
    form = OWN_FORM
    return f"{form.prefix}{name}{form.middle}{json.dumps(arguments, ensure_ascii=False)}{form.suffix}"
