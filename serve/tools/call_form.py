"""What tool calls look like in a model's replies, found by rendering some with its chat template.

A template that knows tools writes a call as a fixed frame around the function's name and its arguments, for example
``<tool_call> {"name": "NAME", "arguments": {...}} </tool_call>``. The frame is what stands around the name and the
arguments of a call that is rendered as a trial, control tokens included; arguments may be a JSON object, or each stand
in a frame, as in ``<function=NAME> <parameter=KEY> VALUE </parameter> </function>``.

Some models' forms cannot be seen in this way, because their templates number calls, describe tools without writing
calls, or write them wrong. ``NAMED`` has them. A template may write calls and list no tools: these are described in the
system message then. Where there is no form (the template does not know calls), calls have slm's form.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from slm.data.chat.content_spans import CHANNEL_MARKS, unused_mark
from slm.data.chat.template import ChatTemplate, TemplateRefusesError
from slm.serve.tools.written_arguments import Fields, written_arguments

THINK, END_OF_THINK = "<think>", "</think>"

Reasoning = Literal["none", "may", "open"]
"""Whether a reply has reasoning between ``<think>`` and ``</think>`` (or in a channel): never, perhaps at its
beginning, or it begins inside of it because the prompt ends with ``<think>``."""

_NAMES = ("probe_first", "probe_other")
_KEY, _KEY2, _VALUE, _RESULT = "probe_key", "probe_second_key", "probe value", "probe result"
_ARGUMENTS = re.compile(rf'\{{\s*"{_KEY}"\s*:\s*"{_VALUE}"\s*\}}')
_OTHER_THOUGHT = re.compile("think", re.IGNORECASE)
"""In a frame: reasoning between other marks, which a forced call would begin."""
_OPEN_THOUGHT = re.compile(rf"{THINK}\s*({END_OF_THINK}\s*)?\Z")
_MARK = re.compile(r"\[/?[A-Z_]+\]|[^\s{\[\"]{3,}")


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
    fields: Fields | None = None
    """How arguments are written one by one; None: as a JSON object."""
    behind_name: tuple[str, str] | None = None
    """What follows the name: a fixed text, and a regular expression of what stands behind that (a call's number)."""
    controls: tuple[str, ...] = ()
    """Control tokens in the frame."""
    writes_calls: bool = True
    """Whether the template writes the calls of a conversation; else they are text of the assistant."""
    lists_tools: bool = True
    """Whether the template lists the tools; else they are described in the system message."""
    id_length: int = 0
    """Above 0: the template refuses calls with ids of another length."""

    @property
    def at_start(self) -> bool:
        """Whether the calls are recognised only at a reply's beginning, because they begin like any JSON."""
        return not self.prefix.startswith(self.controls or "\0") and _MARK.match(self.prefix) is None

    @property
    def mark(self) -> str:
        """The beginning of the prefix that tells calls from text."""
        for control in self.controls:
            if self.prefix.startswith(control):
                return control
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


LFM2 = CallForm(
    prefix="<|tool_call_start|>[",
    middle="(",
    suffix=")]<|tool_call_end|>",
    between="), ",
    fields=Fields(before="", middle="=", after="", between=", ", strings="json", words=("True", "False", "None")),
    controls=("<|tool_call_start|>", "<|tool_call_end|>"),
    writes_calls=False,
)
GEMMA4 = CallForm(
    prefix="<|tool_call>call:",
    middle="{",
    suffix="}<tool_call|>",
    between="}<tool_call|><|tool_call>call:",
    fields=Fields(before="", middle=":", after="", between=",", strings="marked", mark='<|"|>'),
    controls=("<|tool_call>", "<tool_call|>", '<|"|>'),
)
KIMI = CallForm(
    prefix="<|tool_calls_section_begin|><|tool_call_begin|>functions.",
    middle="<|tool_call_argument_begin|>",
    suffix="<|tool_call_end|><|tool_calls_section_end|>",
    between="<|tool_call_end|><|tool_call_begin|>functions.",
    behind_name=(":", "[0-9]{1,3}"),
    controls=(
        *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        *("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    ),
)
GRANITE3 = CallForm(
    prefix='<|tool_call|>[{"name": "',
    middle='", "arguments": ',
    suffix="}]",
    between='}, {"name": "',
    controls=("<|tool_call|>",),
    writes_calls=False,
)
DEEPSEEK3 = CallForm(
    prefix="<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    middle="\n```json\n",
    suffix="\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    between="\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    controls=(
        *("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"),
        *("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
    ),
    writes_calls=False,
    lists_tools=False,
)
"""Its templates forget to begin the calls of a second answer, and end each such answer twice."""
MISTRAL_LIST = CallForm(
    prefix='[TOOL_CALLS][{"name": "',
    middle='", "arguments": ',
    suffix="}]",
    between='}, {"name": "',
    controls=("[TOOL_CALLS]",),
    id_length=9,
)
"""Mistral 7B v0.3 (with a space) and Nemo. Ids stand in the history alone: the model does not make them up."""
MISTRAL_LIST_SPACED = replace(MISTRAL_LIST, prefix='[TOOL_CALLS] [{"name": "')
MISTRAL_ID = CallForm(
    prefix="[TOOL_CALLS]",
    middle="[ARGS]",
    suffix="",
    between="[TOOL_CALLS]",
    behind_name=("[CALL_ID]", "[a-zA-Z0-9]{9}"),
    controls=("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
    id_length=9,
)
"""Mistral Small 3.2."""
HERMES = replace(OWN_FORM, own=False, writes_calls=False)
NAMED: tuple[tuple[tuple[str, ...], CallForm], ...] = (
    (("<|tool_call>call:", "<tool_call|>"), GEMMA4),
    (("<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>"), KIMI),
    (("<|tool_call|>", "available_tools"), GRANITE3),
    (("List of tools: ", "tools"), LFM2),
    (("<tool_call>", "xml_tools"), HERMES),
    (("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>", "```json"), DEEPSEEK3),
    (("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "[AVAILABLE_TOOLS]"), MISTRAL_ID),
    (("[TOOL_CALLS] [", "[AVAILABLE_TOOLS]", '"id"'), MISTRAL_LIST_SPACED),
    (("[TOOL_CALLS][", "[AVAILABLE_TOOLS]", '"id"'), MISTRAL_LIST),
)
"""Forms by what stands in the template; their control tokens are in the vocabulary, too, as control tokens or not.
``List of tools`` belongs to LFM2 and LFM2.5, ``xml_tools`` to SmolLM3, ``json`` to DeepSeek's before V3.1."""
CHANNELS = CallForm(
    prefix=" to=functions.",
    middle="<|channel|>commentary json<|message|>",
    suffix="",
    between=None,
    controls=CHANNEL_MARKS,
)
"""gpt-oss. All of a reply has a form, not only its calls (``slm.serve.tools.channels``), and a call may be written in
another order; ``controls`` come out of every reply."""
_NOT_SEEN = ("<|channel|>",)
"""Templates with one of these name a reply's kind in front of all of it, not only of a call."""


def call_form(template: ChatTemplate) -> CallForm:
    """The form of the calls in this template; ``OWN_FORM`` where it knows none, or none that could be forced."""
    if has_channels(template):
        return CHANNELS
    for marks, form in NAMED:
        if not all(mark in template.source for mark in marks):
            continue
        lists_tools = _lists_tools(template)
        if lists_tools or (_takes_system(template) if not form.lists_tools else form.writes_calls):
            controls = tuple(each for each in form.controls if each in template.control_tokens)
            return replace(form, controls=controls, lists_tools=lists_tools)
    return _seen(template) or OWN_FORM


def has_channels(template: ChatTemplate) -> bool:
    """Whether replies have channels as gpt-oss's do: the template writes them, and they are control tokens."""
    marks = ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>", "functions.")
    return all(each in template.source for each in marks) and set(CHANNELS.controls) <= set(template.control_tokens)


def _lists_tools(template: ChatTemplate) -> bool:
    try:
        return _NAMES[0] in template.text([{"role": "user", "content": "x"}], [_tool(_NAMES[0])], prompt=True)
    except TemplateRefusesError:
        return False


def _takes_system(template: ChatTemplate) -> bool:
    """Whether a system message can describe the tools."""
    try:
        messages = [{"role": "system", "content": _VALUE}, {"role": "user", "content": "x"}]
        return _VALUE in template.text(messages, prompt=True)
    except TemplateRefusesError:
        return False


def _seen(template: ChatTemplate) -> CallForm | None:
    """The form of the calls that a template writes; None where it writes none, or none that could be forced."""
    if any(each in template.source for each in _NOT_SEEN):
        return None
    asked = {"role": "user", "content": "x"}
    tools = [_tool(name) for name in _NAMES]
    try:
        prompt = _OPEN_THOUGHT.sub("", template.text([asked], tools, prompt=True))
        one = template.text([asked, _calling(_NAMES[:1])], tools)
        answered = [asked, _calling(_NAMES[:1]), _answer(0)]
        if _RESULT not in template.text(answered, tools, prompt=True):
            return None
        said = template.text([asked, {"role": "assistant", "content": _VALUE}], tools)
    except TemplateRefusesError:
        return None
    turn_end = said.rpartition(_VALUE)[2]
    found, written = _frames(prompt, one, 1, template, _ARGUMENTS, turn_end), _ARGUMENTS
    fields: Fields | None = None
    if found is None:
        fields = _fields(template, asked, tools, prompt)
        if fields is None:
            return None
        written = re.compile(re.escape(f"{fields.before}{_KEY}{fields.middle}{_VALUE}{fields.after}"))
        found = _frames(prompt, one, 1, template, written, turn_end)
        if found is None:
            return None
    prefix, middle, suffix = found
    try:
        text = template.text([asked, _calling(_NAMES)], tools)
        several = _frames(prompt, text, 2, template, written, turn_end)
    except TemplateRefusesError:
        several = None
    between = several[2] if several is not None and several[:2] == (prefix, middle) and several[4] == suffix else None
    bare = prefix.lstrip()
    lead = prefix[: len(prefix) - len(bare)]
    frame = "\n".join([prefix, middle, suffix, between or ""])
    controls = tuple(each for each in template.control_tokens if each in frame)
    lists_tools = _NAMES[0] in prompt
    if not lists_tools and not _takes_system(template):
        return None
    return CallForm(
        prefix=bare,
        middle=middle,
        suffix=suffix,
        between=between,
        lead=lead,
        fields=fields,
        controls=controls,
        lists_tools=lists_tools,
    )


def _fields(
    template: ChatTemplate, asked: dict[str, Any], tools: Sequence[dict[str, Any]], prompt: str
) -> Fields | None:
    """How a template writes arguments one by one, found from a call with two of them; None where it does not."""

    def rest_of(arguments: dict[str, Any]) -> str:
        text = template.text([asked, _calling(_NAMES[:1], arguments)], list(tools))
        return (
            text[len(prompt) :].rpartition(END_OF_THINK)[2].partition(_NAMES[0])[2] if text.startswith(prompt) else ""
        )

    try:
        head, one, tail = rest_of({_KEY: _VALUE}).partition(_VALUE)
        first, two, second = rest_of({_KEY: _VALUE, _KEY2: _VALUE}).partition(_VALUE)
        word = rest_of({_KEY: True})
    except TemplateRefusesError:
        return None
    between, found, _ = second.partition(_KEY2)
    head, key, middle = head.partition(_KEY)
    if not (one and two and found and key) or first != head + _KEY + middle or not middle:
        return None
    # What stands in front of a key is at the end of both texts before one; the rest of the second follows a value.
    n = len(_shared(head[::-1], between[::-1]))
    before = head[len(head) - n :]
    after = between[: len(between) - n]
    if not tail.startswith(after):
        return None
    # What stands in front of a key and in front of the call's end follows the name, or the value before.
    shared = _shared(before, tail[len(after) :]).removesuffix("<")
    before, after = before[len(shared) :], after + shared
    frame = before + middle + after
    if not before or not after or "probe" in frame or template.first_control(frame) is not None:
        return None
    all_words = (("true", "false", "null"), ("True", "False", "None"))
    # A text may stand in another frame than other values.
    other = word.partition(before + _KEY)[2]
    for words in all_words:
        of_others, found, rest = other.partition(words[0])
        if of_others and found and rest.startswith(after) and "probe" not in of_others:
            of_others = "" if of_others == middle else of_others
            return Fields(before=before, middle=middle, middle_of_others=of_others, after=after, words=words)
    return None


def _shared(a: str, b: str) -> str:
    """What two texts begin with."""
    return next((a[:i] for i, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), min(a, b, key=len))


def _frames(
    prompt: str, text: str, n: int, template: ChatTemplate, written: re.Pattern[str], turn_end: str
) -> tuple[str, ...] | None:
    """What stands around the names and arguments of the ``n`` calls in a reply, in order; None where it is no frame of
    fixed text. ``written``: the arguments; ``turn_end``: what stands behind a reply without calls."""
    if not text.startswith(prompt):
        return None
    rest = text[len(prompt) :].rpartition(END_OF_THINK)[2]
    frames = []
    for name in _NAMES[:n]:
        before, found, rest = rest.partition(name)
        arguments = written.search(rest)
        if not found or arguments is None:
            return None
        frames += [before, rest[: arguments.start()]]
        rest = rest[arguments.end() :]
    frames.append(_without_end(rest, template, turn_end).rstrip())
    frame = "\n".join(frames)
    ends = any(each in turn_end for each in template.control_tokens if each in frame)
    usable = all(each.strip() for each in frames[:-1:2]) and not _OTHER_THOUGHT.search(frame) and not ends
    return tuple(frames) if usable and not any("probe" in each for each in frames) else None


def _without_end(rest: str, template: ChatTemplate, turn_end: str) -> str:
    """What stands behind the last call's arguments, without what ends a turn."""
    for i in range(len(turn_end)):
        end = turn_end[i:]
        if end.strip() and rest.endswith(end) and (not i or template.first_control(end) == 0):
            return rest[: -len(end)]
    end_at = template.first_control(rest)  # a turn with calls ends otherwise
    return rest if end_at is None else rest[:end_at]


def _tool(name: str) -> dict[str, Any]:
    properties = {key: {"type": "string"} for key in (_KEY, _KEY2)}
    parameters = {"type": "object", "properties": properties, "required": [_KEY]}
    return {"type": "function", "function": {"name": name, "description": "x", "parameters": parameters}}


def _calling(names: Sequence[str], arguments: dict[str, Any] | None = None) -> dict[str, Any]:
    given = {_KEY: _VALUE} if arguments is None else arguments
    calls = [
        {"id": f"probe000{i}", "type": "function", "function": {"name": name, "arguments": given}}
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


def written_calls(form: CallForm, calls: Sequence[Mapping[str, Any]]) -> list[tuple[str, bool]]:
    """Calls as the assistant writes them: parts of a text, each with whether it is the frame, in which control tokens
    are meant."""
    parts: list[tuple[str, bool]] = []
    for i, call in enumerate(calls):
        begins = form.prefix if not i else form.between or form.suffix + "\n" + form.prefix
        arguments = call["arguments"]
        if form.fields is None:
            written = json.dumps(arguments, ensure_ascii=False)
        else:
            written = written_arguments(form.fields, arguments)
        parts += [(begins, True), (call["name"], False)]
        if form.behind_name is not None:
            parts.append((f"{form.behind_name[0]}{i}", True))
        parts += [(form.middle, True), (written, False)]
    return [*parts, (form.suffix, True)]


def with_short_ids(messages: Sequence[dict[str, Any]], length: int) -> list[dict[str, Any]]:
    """The conversation with ids of calls that have ``length`` letters and digits; equal ones stay equal."""

    def short(key: str) -> str:
        return key if len(key) == length and key.isalnum() else hashlib.sha256(key.encode()).hexdigest()[:length]

    out = []
    for message in messages:
        calls = message.get("tool_calls")
        if calls:
            named = [{**each, "id": short(str(each.get("id") or i))} for i, each in enumerate(calls)]
            message = {**message, "tool_calls": named}
        if message.get("tool_call_id"):
            message = {**message, "tool_call_id": short(message["tool_call_id"])}
        out.append(message)
    return out


def described(form: CallForm, tools: Sequence[dict[str, Any]]) -> list[tuple[str, bool]]:
    """The tools and how to call one, as parts of a system message (see ``written_calls``)."""
    listed = "\n".join(json.dumps(each, ensure_ascii=False) for each in tools)
    shown = "OBJECT" if form.fields is None else written_arguments(form.fields, {"KEY": "VALUE"})
    call = [(form.prefix, True), ("NAME", False), (form.middle, True), (shown, False), (form.suffix, True)]
    said = f"You can call these functions:\n<tools>\n{listed}\n</tools>\nTo call one, answer with "
    return [(said, False), *call]


def with_marks(
    form: CallForm, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] = ()
) -> tuple[list[dict[str, Any]], dict[str, list[tuple[str, bool]]]]:
    """The conversation for a template that does not write calls, or does not list ``tools``: each assistant's calls are
    a mark in its content, the tools one in the system message; and what has to stand there (see ``written_calls``)."""
    free = unused_mark(json.dumps(list(messages), ensure_ascii=False)) or "\x00"
    out: list[dict[str, Any]] = []
    said: dict[str, list[tuple[str, bool]]] = {}
    if tools and not form.lists_tools:
        mark = f"{free}t{free}"
        said[mark] = described(form, tools)
        if messages and messages[0]["role"] == "system":
            first, *messages = messages
            mark = f"{first['content']}\n\n{mark}" if first["content"] else mark
        out.append({"role": "system", "content": mark})
    for message in messages:
        calls = message.get("tool_calls")
        if not calls or form.writes_calls:
            out.append(message)
            continue
        mark = f"{free}{len(said)}{free}"
        said[mark] = written_calls(form, [each["function"] for each in calls])
        content = message["content"].rstrip()
        kept = {key: value for key, value in message.items() if key != "tool_calls"}
        out.append({**kept, "content": f"{content}\n{mark}" if content else mark})
    return out, said
