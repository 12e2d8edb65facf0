"""Conversations as text in a chat template, with the parts of it that the assistant writes.

Shape suffixes: none; spans are character positions.
"""

from __future__ import annotations

import datetime
import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from jinja2 import TemplateError

from slm.data.chat import jinja, written
from slm.data.chat.content_spans import ControlTokens, Span
from slm.data.errors import UserError

IM_START, IM_END = "<|im_start|>", "<|im_end|>"

CHATML = """\
{%- macro calls(message) -%}
    {%- for call in message.tool_calls or [] -%}
        {%- set function = call.function or call -%}
        {{- '\\n<tool_call>\\n{"name": ' + function.name | tojson + ', "arguments": ' }}
        {{- function.arguments if function.arguments is string else function.arguments | tojson }}
        {{- '}\\n</tool_call>' }}
    {%- endfor -%}
{%- endmacro -%}
{%- if tools -%}
    {{- '<|im_start|>system\\n' -}}
    {%- if messages[0].role == 'system' -%}{{- messages[0].content + '\\n\\n' -}}{%- endif -%}
    {{- 'You can call these functions:\\n<tools>\\n' -}}
    {%- for tool in tools -%}{{- tool | tojson + '\\n' -}}{%- endfor -%}
    {{- '</tools>\\nTo call one, answer with <tool_call>\\n{"name": NAME, "arguments": OBJECT}\\n</tool_call>' -}}
    {{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
    {%- if not (tools and loop.first and message.role == 'system') -%}
        {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') + calls(message) + '<|im_end|>\\n' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""
"""ChatML, the template for a model without one."""


Capability = Literal["tools", "calls", "results"]
"""What a template may write of tools: their descriptions, calls of them, what they return."""
TOOL_WORDS: dict[Capability, str] = {"tools": "tools", "calls": "tool calls", "results": "results of tools"}
REWRITTEN = (
    "{} answers are not learned: in the conversation the chat template writes them, or what stands before them, "
    "otherwise than where it asks for them"
)
_REASONING = re.compile(r"""(?:\.|\[\s*['"]|get\(\s*['"])(reasoning_content|reasoning|thinking)\b""")
"""A template's access to the reasoning of a message, by any of its names."""


_MOST_ADDED = 64
"""Characters that a template may put before the calls of a last answer."""


class TemplateRefusesError(ValueError):
    """The template does not render a conversation; the text says why."""


@dataclass(frozen=True)
class Rendered:
    """A conversation as text."""

    text: str
    scored: tuple[Span, ...]
    """What the assistant writes: from the first character to behind the token that ends the turn."""
    literal: tuple[Span, ...]
    """Parts in which no control token may be parsed: contents spell some there."""
    without_reasoning: int = 0
    """Scored answers with reasoning that the template does not write."""
    rewritten: int = 0
    """Answers that are not scored, since the template writes them otherwise than where it asks for them."""

    def begins_with(self, token: str) -> bool:
        """Whether the template itself wrote ``token`` at the beginning: then nothing may add it once more."""
        return bool(token) and self.text.startswith(token) and not (self.literal and self.literal[0][0] == 0)


class ChatTemplate:
    """A model's chat template and the names of its control tokens."""

    def __init__(
        self,
        text: str,
        *,
        bos: str,
        eos: str,
        control_tokens: tuple[str, ...],
        name: str = "the model",
        moment: datetime.datetime | None = None,
    ) -> None:
        """``moment``: the time that the template may print; None: that of each prompt, and one for all conversations
        that are rendered."""
        self.source = text
        self.bos, self._eos = bos, eos
        self.control_tokens, self._name, self._given_moment = control_tokens, name, moment
        self._moment = moment or datetime.datetime.now()
        self._reasoning_keys = tuple(dict.fromkeys(_REASONING.findall(text)))
        self.control = ControlTokens(control_tokens)
        self._names = sorted(control_tokens, key=len, reverse=True)
        try:
            self._template = jinja.environment().from_string(text)
        except (TemplateError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise UserError(f"the chat template of {name} is not valid ({error}): correct its chat_template") from error

    def with_source(self, text: str) -> ChatTemplate:
        """Another template for the same model. UserError where it is not valid."""
        return ChatTemplate(
            text,
            bos=self.bos,
            eos=self._eos,
            control_tokens=self.control_tokens,
            name=self._name,
            moment=self._given_moment,
        )

    def text(
        self,
        messages: list[dict[str, Any]],
        tools: list[Any] | None = None,
        *,
        prompt: bool = False,
        now: datetime.datetime | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """The messages as text, with ``prompt`` up to where the assistant goes on. ``now``: the time that a template
        may print; None: the template's moment, else this one. ``options``: further variables of the template. Raises
        TemplateRefusesError. Its cause is what the template raised."""
        as_text = any(each.get("tool_calls") for each in messages) and self._takes_text
        return self._text([self._as_taken(each, as_text) for each in messages], tools, prompt, now, options)

    def _text(
        self,
        messages: list[dict[str, Any]],
        tools: list[Any] | None = None,
        prompt: bool = False,
        now: datetime.datetime | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        given: dict[str, Any] = {
            "messages": messages,
            "tools": tools or None,
            "add_generation_prompt": prompt,
            "bos_token": self.bos,
            "eos_token": self._eos,
            "documents": None,
            "strftime_now": (now or self._given_moment or datetime.datetime.now()).strftime,
        }
        try:
            return self._template.render({**(options or {}), **given})
        except Exception as error:  # a template can raise whatever Python can
            raise TemplateRefusesError(f"the chat template refuses it: {error}") from error

    def _as_taken(self, message: dict[str, Any], as_text: bool) -> dict[str, Any]:
        """A message with its reasoning by the names that the template reads, and perhaps its arguments as text."""
        reasoning, calls = message.get("reasoning_content"), message.get("tool_calls")
        if reasoning and self._reasoning_keys:
            message = message | dict.fromkeys(self._reasoning_keys, reasoning)
        if as_text and calls:
            message = message | {"tool_calls": [_with_text(each) for each in calls]}
        return message

    @functools.cached_property
    def _takes_text(self) -> bool:
        """Whether the template writes a call's arguments only where they come as text (DeepSeek's does)."""
        return "calls" not in self._probed(False) and "calls" in self._probed(True)

    @functools.cached_property
    def writes(self) -> frozenset[Capability]:
        """What the template writes of tools, found by rendering some."""
        return self._probed(self._takes_text)

    def _probed(self, as_text: bool) -> frozenset[Capability]:
        parameters = {"type": "object", "properties": {}}
        function: dict[str, Any] = {"name": "probe_offered", "description": "probe", "parameters": parameters}
        call: dict[str, Any] = {"name": "probe_called", "arguments": {"probe_key": "probe value"}}
        calling: dict[str, Any] = {"id": "probe0000", "type": "function", "function": call}
        said: list[dict[str, Any]] = [
            {"role": "user", "content": "probe question"},
            {"role": "assistant", "content": "", "tool_calls": [_with_text(calling) if as_text else calling]},
            {"role": "tool", "name": "probe_called", "tool_call_id": "probe0000", "content": "probe result"},
            {"role": "assistant", "content": "probe answer"},
        ]
        found: set[Capability] = set()
        for messages, tools in (
            (said[:1], [{"type": "function", "function": function}]),
            (said[:2], None),
            (said, None),
            (said, [{"type": "function", "function": function}]),
        ):
            try:
                text = self._text(messages, tools, prompt=messages[-1]["role"] == "user")
            except TemplateRefusesError:
                continue
            if tools and function["name"] in text:
                found.add("tools")
            if len(messages) > 1 and written.call_stands(calling, text):
                found.add("calls")
            if len(messages) > 2 and "probe result" in text:
                found.add("results")
        return frozenset(found)

    def render(self, conversation: dict[str, Any]) -> Rendered:
        """The whole conversation, and in it what the assistant writes. Raises TemplateRefusesError, also where the
        template does not write all that is said.

        A template may write an earlier answer otherwise than the last one (some drop its reasoning). Then only the
        answers that stand in the text as they were given are scored, and always the last one, if it has weight. What
        a template puts before a last answer's calls (Qwen3's puts empty reasoning), or behind the last answer alone, is
        no part of an earlier one.
        """
        messages, tools = conversation["messages"], conversation.get("tools")
        text = self.text(messages, tools, now=self._moment)
        self._check_written(text, messages, tools)
        literal = self._literal(text, messages, tools, now=self._moment)
        scored, dropped, rewritten = [], 0, 0
        for number, message in enumerate(messages):
            if message["role"] != "assistant" or message.get("weight") == 0:
                continue
            before = self.text(messages[:number], tools, prompt=True, now=self._moment)
            last = number == len(messages) - 1
            with_answer = text if last else self.text(messages[: number + 1], tools, now=self._moment)
            start, up_to_end = len(before), None
            if with_answer.startswith(before):
                up_to_end = self._shared(text, with_answer, start, message)
            end = start if up_to_end is None else self._end_of_turn(up_to_end, start, literal)
            if up_to_end is None or end <= start:
                rewritten += 1
                continue
            dropped += self._drops(up_to_end, start, messages[: number + 1], tools)
            scored.append((start, end))
        answers = [each for each in messages if each["role"] == "assistant"]
        if not scored and answers and answers[-1].get("weight") == 0:
            raise TemplateRefusesError(
                "no answer in it is to be learned: the last has the weight 0, and so have the others, or the template "
                "changes them"
            )
        if not scored:
            raise TemplateRefusesError(
                "the chat template changes what stands before the last answer, so it cannot be found"
            )
        return Rendered(text, tuple(scored), literal, dropped, rewritten)

    def _shared(self, text: str, with_answer: str, start: int, message: dict[str, Any]) -> str | None:
        """``text`` up to the end of an answer which alone, as the last one, is written as ``with_answer`` from
        ``start``; None where ``text`` has it in other words."""
        if text.startswith(with_answer):
            return with_answer
        if not text.startswith(with_answer[:start]):
            return None
        for alone in (with_answer[start:], with_answer[start:].removesuffix(self._eos)):
            for skipped in range(min(len(alone), _MOST_ADDED) if message.get("tool_calls") else 1):
                answer = alone[skipped:]
                if answer and text.startswith(answer, start):
                    lost = skipped and (written.missing(message, answer) or written.drops_reasoning(message, answer))
                    return None if lost else text[: start + len(answer)]
        return None

    def _drops(self, text: str, start: int, messages: list[dict[str, Any]], tools: list[Any] | None) -> bool:
        """Whether the last message's reasoning is not in the text from ``start``. Raises TemplateRefusesError where its
        content or a call is not."""
        message = messages[-1]
        what = written.missing(message, text[start:])
        if what:  # the template may begin the answer where it asks for one
            shared = self.text(messages[:-1], tools, now=self._moment)
            start = len(shared) if text.startswith(shared) else start
            what = written.missing(message, text[start:])
        if what:
            advice = " (data.tool_template=ours does)" if message.get("tool_calls") else ""
            raise TemplateRefusesError(f"the chat template does not write {what} of message {len(messages)}{advice}")
        return written.drops_reasoning(message, text[start:])

    def _check_written(self, text: str, messages: list[dict[str, Any]], tools: list[Any] | None) -> None:
        """TemplateRefusesError where the template drops what the answers follow from."""
        for tool in tools or []:
            name = tool.get("function", tool).get("name", "") if isinstance(tool, dict) else ""
            if not written.stands(name, text):
                raise TemplateRefusesError(f"the chat template does not write the tool {name!r}")
        for number, message in enumerate(messages, 1):
            role = message["role"]
            if role != "assistant" and not written.stands(message["content"], text):
                what = "the result of a tool" if role == "tool" else f"the {role}'s text"
                raise TemplateRefusesError(f"the chat template does not write {what}, message {number}")
        if not written.as_often((each["content"] for each in messages if each["role"] != "assistant"), text):
            raise TemplateRefusesError("the chat template does not write each of the messages that say the same")
        needs: dict[Capability, bool] = {
            "tools": bool(tools),
            "calls": any(each.get("tool_calls") for each in messages),
            "results": any(each["role"] == "tool" for each in messages),
        }
        if lacks := [each for each, needed in needs.items() if needed and each not in self.writes]:
            raise TemplateRefusesError(
                f"the chat template does not write {', '.join(TOOL_WORDS[each] for each in lacks)}"
            )

    def prompt(
        self,
        messages: list[dict[str, Any]],
        tools: list[Any] | None = None,
        *,
        opens_turn: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> Rendered:
        """The text up to where the assistant goes on; nothing in it is scored. ``opens_turn``: whether the assistant's
        turn begins at its end. ``options``: as for ``text``. Raises TemplateRefusesError."""
        now = self._given_moment or datetime.datetime.now()
        text = self.text(messages, tools, prompt=opens_turn, now=now, options=options)
        return Rendered(text, (), self._literal(text, messages, tools, prompt=opens_turn, now=now, options=options))

    def first_control(self, text: str) -> int | None:
        """Where the first control token is spelled in a text; None where there is none."""
        return self.control.first(text)

    def _literal(
        self,
        text: str,
        messages: list[dict[str, Any]],
        tools: list[Any] | None,
        *,
        prompt: bool = False,
        now: datetime.datetime | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> tuple[Span, ...]:
        # What is not content (tools, calls, reasoning) matters only where it spells a control token.
        rest = [{key: value for key, value in each.items() if key not in ("role", "content")} for each in messages]
        spelling = sorted({each for each in _strings([rest, tools, options]) if self.control.spelled_in(each)})

        def again(contents: list[str]) -> str | None:
            marked = dict(zip(spelling, contents[len(messages) :], strict=True))
            changed = [
                {**_replaced(each, marked), "role": each["role"], "content": content}
                for each, content in zip(messages, contents[: len(messages)], strict=True)
            ]
            try:
                return self.text(
                    changed, _replaced(tools, marked), prompt=prompt, now=now, options=_replaced(options, marked)
                )
            except TemplateRefusesError:
                return None

        return self.control.literal_spans(text, [*(each["content"] for each in messages), *spelling], again)

    def _end_of_turn(self, text: str, start: int, literal: tuple[Span, ...]) -> int:
        """Behind the last control token after ``start``; the end of the text where there is none."""
        end = -1
        for name in self._names:
            at = text.rfind(name, start)
            if at >= 0 and not any(begin <= at < stop for begin, stop in literal):
                end = max(end, at + len(name))
        return end if end > start else len(text)


def _with_text(call: dict[str, Any]) -> dict[str, Any]:
    """A call with its arguments as JSON text."""
    function = call.get("function", call)
    if isinstance(function.get("arguments"), str):
        return call
    changed = function | {"arguments": json.dumps(function.get("arguments") or {}, ensure_ascii=False)}
    return call | {"function": changed} if "function" in call else changed


def _strings(value: Any) -> Iterator[str]:
    """All texts in a JSON value, the names of fields included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _strings(key)
            yield from _strings(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _strings(each)


def _replaced(value: Any, by: Mapping[str, str]) -> Any:
    """A JSON value with other texts in place of those that ``by`` names."""
    if not by:
        return value
    if isinstance(value, str):
        return by.get(value, value)
    if isinstance(value, Mapping):
        return {_replaced(key, by): _replaced(each, by) for key, each in value.items()}
    return [_replaced(each, by) for each in value] if isinstance(value, list | tuple) else value
