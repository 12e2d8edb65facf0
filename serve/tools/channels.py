"""Replies of gpt-oss: each message of a turn names its channel. ``analysis`` is reasoning, ``final`` is the answer,
``commentary`` is what is said before a call, or a call itself, which names its recipient.

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...
    <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}

A call's recipient may also stand in front of its channel, as the model's template writes it. A turn ends with ``final``
or with a call, so it holds one call at most. Source: OpenAI's description of the format ("harmony").
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from slm.data.chat.content_spans import CHANNEL_MARKS
from slm.serve.grammar.forms import Grammar, as_text, quoted
from slm.serve.tools.call_form import CHANNELS
from slm.serve.tools.reply_reader import JsonEnd, Piece, Reader, begun

Begins = Literal["", "header", "final"]
"""Where such a reply begins: with its channel's name, or inside the final message. "": the model has no channels."""

START, END, MESSAGE, CHANNEL, CONSTRAIN = CHANNEL_MARKS
ANALYSIS = f"{CHANNEL}analysis{MESSAGE}"
FINAL = f"{CHANNEL}final{MESSAGE}"
TURN = f"{START}assistant"
"""How a prompt ends, and how each further message begins."""

LEAD = " to="
"""What a reply may begin with besides a channel: its call's recipient."""

_CALL = CHANNELS.prefix
_RECIPIENT = re.compile(rf"{re.escape(_CALL)}([^\s<]+)")
_NAME = re.compile(rf"{re.escape(CHANNEL)}\s*(\w+)")
_BEGINS = (END, START, CHANNEL)
"""What stands where a message or a header ends, or the next one begins."""
_BREAK = "\n\n"
"""Between two messages of one kind."""
_FREE = "FREE: /(?s:.*)/"
_NEXT = f"{END} {START} {quoted('assistant')}"


class ChannelReader(Reader):
    """``calls``: whether the reply can hold any; else a message to a function is content. ``begins``: where it
    begins."""

    def __init__(self, begins: Begins, *, calls: bool) -> None:
        super().__init__("text" if begins == "final" else "header")
        self._calls = calls
        self._kind: Literal["reasoning", "content"] = "content"
        self._said: set[str] = set()
        """Kinds that have some text."""
        self._break = ""
        """Stands before the next text."""

    def _in_header(self, out: list[Piece], last: bool) -> bool:
        if not any(self._held.startswith(each) or each.startswith(self._held) for each in (START, CHANNEL, LEAD)):
            self._state, self._kind = "text", "content"  # a model that has not learned the format
            return True
        header, found, behind = self._held.partition(MESSAGE)
        if not found:
            return False
        self._held = behind
        if self._calls and (to := _RECIPIENT.search(header)):
            out.append(Piece(kind="call", text=to[1]))
            self._state, self._arguments = "arguments", JsonEnd()
            return True
        names = _NAME.findall(header)  # now and then the model begins a header twice
        self._state, self._kind = "text", "reasoning" if names[-1:] == ["analysis"] else "content"
        self._break = _BREAK if self._kind in self._said else ""
        return True

    def _in_text(self, out: list[Piece], last: bool) -> bool:
        at = self._end_of_message()
        if at < 0:
            keep = 0 if last else begun(self._held, _BEGINS)
            self._emit(out, self._held[: len(self._held) - keep])
            self._held = self._held[len(self._held) - keep :]
            return False
        self._emit(out, self._held[:at])
        self._held, self._state = self._held[at:].removeprefix(END), "header"
        return True

    def _in_after(self, out: list[Piece], last: bool) -> bool:
        at = self._end_of_message()
        if at < 0:
            return False
        self._held, self._state = self._held[at:].removeprefix(END), "header"
        return True

    def _end_of_message(self) -> int:
        """Where the next message or header begins in what is held; -1: nowhere."""
        return min((at for each in _BEGINS if (at := self._held.find(each)) >= 0), default=-1)

    def _emit(self, out: list[Piece], text: str) -> None:
        if text:
            out.append(Piece(kind=self._kind, text=self._break + text))
            self._break = ""
            self._said.add(self._kind)


def answer_grammar(content: Grammar, *, reasons: bool) -> str:
    """The checked grammar of a reply with ``content`` as its final message. ``reasons``: reasoning may come before."""
    start = "think* final" if reasons else "final"
    return as_text("\n".join([f"start: {start}", *_messages(), _final(content), content.rules]))


def call_rules(
    names: Sequence[str], *, begins: Begins, required: bool, reasons: bool, content: Grammar | None
) -> list[str]:
    """The rules of a reply with at most one call of these functions, beginning with ``start``. The arguments of the
    function ``i`` are the rule ``arguments{i}``. ``content``: what a final message must be."""
    if required:
        turn = "(think | preamble)* call" if reasons else "call"
    elif content is not None:
        # Nothing but the format stands in the content, unless a call follows.
        turn = "think* final | (think | preamble)* call" if reasons else "final | preamble* call"
    else:
        turn = "(think | preamble)* (final | call | unended)" if reasons else "preamble* (final | call)"
    start = f"start: {turn}"
    if begins == "final":
        alone = "" if required else ("FREE | " if content is None else "reply | ")
        start = f"start: {alone}FREE {_NEXT} turn\nturn: {turn}"
    kind = f"({quoted('analysis')} | {quoted('commentary')})" if reasons else quoted("commentary")
    by_role = [f"{quoted(name)} {CHANNEL} {kind} typed? {MESSAGE} arguments{i}" for i, name in enumerate(names)]
    by_channel = [f"{quoted(name)} typed? {MESSAGE} arguments{i}" for i, name in enumerate(names)]
    return [
        start,
        *_messages(),
        _final(content),
        *([] if content is None else [content.rules]),
        f"call: {quoted(_CALL)} byrole | {CHANNEL} {kind} {quoted(_CALL)} bychannel",
        f"byrole: {' | '.join(by_role)}",
        f"bychannel: {' | '.join(by_channel)}",
    ]


def _messages() -> list[str]:
    return [
        f"think: {CHANNEL} {quoted('analysis')} {MESSAGE} FREE {_NEXT}",
        f"preamble: {CHANNEL} {quoted('commentary')} {MESSAGE} FREE {_NEXT}",
        f"unended: {CHANNEL} ({quoted('analysis')} | {quoted('commentary')}) {MESSAGE} FREE",
        f"typed: {quoted(' ')} {CONSTRAIN} {quoted('json')} | {CONSTRAIN} {quoted('json')} | {quoted(' json')}",
        _FREE,
    ]


def _final(content: Grammar | None) -> str:
    if content is None:
        return f"final: {CHANNEL} {quoted('final')} {MESSAGE} FREE"
    return f"final: {CHANNEL} {quoted('final')} typed? {MESSAGE} reply"


def as_taken(
    messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A conversation and its tools as the template takes them.

    It wants one call in a message, each followed by its result, with either a text or reasoning, and no channels in a
    content; and a tool with a description.
    """
    out: list[dict[str, Any]] = []
    left = [_apart(each) for each in messages]
    while left:
        message, left = left[0], left[1:]
        calls = message.get("tool_calls")
        if not calls:
            out.append(message)
            continue
        thought = _BREAK.join(filter(None, (message.get("reasoning_content"), message["content"])))
        n = next((i for i, each in enumerate(left) if each["role"] != "tool"), len(left))
        results, left = left[:n], left[n:]
        for i, call in enumerate(calls):
            said = {"reasoning_content": thought} if thought and not i else {}
            out.append({"role": "assistant", "content": "", "tool_calls": [call], **said})
            mine = [each for each in results if _answers(each, call, alone=len(calls) == 1 or i == len(calls) - 1)]
            out += mine
            results = [each for each in results if all(each is not taken for taken in mine)]
    return out, [_described(each) for each in tools]


def _answers(result: Mapping[str, Any], call: Mapping[str, Any], *, alone: bool) -> bool:
    """Whether a result belongs to a call; ``alone``: there is no later one that it could belong to."""
    key = result.get("tool_call_id")
    return alone or (key is not None and key == call.get("id"))


def _apart(message: dict[str, Any]) -> dict[str, Any]:
    """A reply that was not taken apart, taken apart: the template refuses channels in a content."""
    content = message["content"]
    if message["role"] != "assistant" or not any(each in content for each in (ANALYSIS, FINAL)):
        return message
    pieces = ChannelReader("header", calls=False).push(content, last=True)
    texts = {kind: "".join(each.text for each in pieces if each.kind == kind) for kind in ("reasoning", "content")}
    thought = message.get("reasoning_content") or texts["reasoning"]
    return {**message, "content": texts["content"], **({"reasoning_content": thought} if thought else {})}


def _described(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool with what the template adds to a text without asking: its description, and defaults of a choice."""
    function = {"description": "", **tool["function"]}
    parameters = function.get("parameters")
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    if isinstance(parameters, dict) and isinstance(properties, dict):
        changed = {key: _with_text_default(each) for key, each in properties.items()}
        function["parameters"] = {**parameters, "properties": changed}
    return {**tool, "function": function}


def _with_text_default(schema: Any) -> Any:
    if not isinstance(schema, dict) or "default" not in schema or not (schema.get("enum") or schema.get("oneOf")):
        return schema
    default = schema["default"]
    return schema if isinstance(default, str) else {**schema, "default": json.dumps(default, ensure_ascii=False)}
