"""From chat messages to the text of a prompt, with the model's own template or a plain one.

A template is a program from a file that anybody may have made, so it runs in a sandbox (``slm.data.chat.jinja``).
Control tokens spelled in a message's content stay text (``slm.data.chat.content_spans``).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jinja2.exceptions import SecurityError

from slm.data.chat.content_spans import Span, unused_mark
from slm.data.chat.template import ChatTemplate, Rendered, TemplateRefusesError
from slm.data.errors import UserError
from slm.serve.engine.protocol import ModelInfo
from slm.serve.tools.call_form import (
    END_OF_THINK,
    OWN_FORM,
    THINK,
    CallForm,
    Reasoning,
    call_form,
    has_channels,
    in_own_form,
    with_marks,
    with_short_ids,
    without_system,
)
from slm.serve.tools.channels import FINAL, TURN, Begins, as_taken

FALLBACK_STOP = ("\n\nUser:", "\nUser:", "\n\nSystem:", "\nSystem:")
"""Stop strings of the plain template, which has no token that ends a turn."""

THINKING = ("enable_thinking", "thinking")
"""What chat templates call the variable that turns reasoning on or off."""
_FALLBACK_NAMES = {"system": "System", "user": "User", "assistant": "Assistant"}


class ChatTemplateError(Exception):
    """The template refuses these messages or does not work; the text says which."""


@dataclass(frozen=True, kw_only=True)
class RenderedChat:
    """The text of a prompt, and how to tokenize it. The fields have the names that they have in ``Generate``."""

    text: str
    add_special: bool
    """Whether BOS must still be added in front of the text."""
    parse_special: bool
    literal_spans: tuple[Span, ...] = ()
    reasoning: Reasoning = "none"
    """Where the reply may hold reasoning. It is no field of ``Generate``, and neither is the next one."""
    begins: Begins = ""
    """Where the reply begins, if its messages have channels."""
    warnings: tuple[str, ...] = ()
    """System messages that do not stand where they were given."""


class ChatPrompt:
    """Renders messages for one model.

    ``own`` is whether the model's file has a valid template. Without one the messages become ``System: ...``,
    ``User: ...`` and ``Assistant: ...`` paragraphs, which a base model can at least continue.
    """

    def __init__(self, info: ModelInfo) -> None:
        self._bos = info.bos
        self._template: ChatTemplate | None = None
        self._source = info.chat_template or ""
        self.problem: str | None = None
        """Why the model's own template is not used; None where it is, or where there is none."""
        if info.chat_template:
            try:
                self._template = ChatTemplate(
                    info.chat_template, bos=info.bos, eos=info.eos, control_tokens=info.control_tokens
                )
            except UserError as error:
                self.problem = f"the model's chat template is not valid ({error.__cause__}); using the plain one"

    @property
    def own(self) -> bool:
        return self._template is not None

    @property
    def stop(self) -> tuple[str, ...]:
        """Stop strings that the template needs."""
        return () if self.own else FALLBACK_STOP

    @property
    def thinks(self) -> bool:
        """Whether the template knows reasoning, between ``<think>`` and ``</think>`` or in a channel."""
        return self._template is not None and (END_OF_THINK in self._source or self.channels)

    @cached_property
    def channels(self) -> bool:
        """Whether the messages of a reply have channels, as gpt-oss's do."""
        return self._template is not None and has_channels(self._template)

    def reads(self, name: str) -> bool:
        """Whether a variable of that name has an effect, as far as the template's text shows it."""
        if self.channels and name in THINKING:
            return True
        return self._template is not None and re.search(rf"\b{re.escape(name)}\b", self._source) is not None

    @cached_property
    def call_form(self) -> CallForm:
        """What the model's tool calls look like. Found with the first call of this property, which renders a few
        conversations."""
        return OWN_FORM if self._template is None else call_form(self._template)

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: Sequence[dict[str, Any]] = (),
        *,
        parse_special_in_content: bool = False,
        options: Mapping[str, Any] | None = None,
        opens_turn: bool = True,
        continues: bool = False,
        answers_at_once: bool = False,
    ) -> RenderedChat:
        """The prompt. Each message has a ``role`` and a ``content``, and may have ``tool_calls`` (with arguments as
        objects), ``reasoning_content`` and what else a template reads.

        With ``parse_special_in_content``, control tokens spelled in a content are parsed like the template's own.
        ``options``: further variables of the template. ``opens_turn``: whether the assistant's turn begins at the end.
        ``continues``: whether the reply goes on with the last message's text instead. ``answers_at_once``: a model with
        channels begins with its answer. Raises ``ChatTemplateError``.
        """
        reasons = not (self.channels and (answers_at_once or _is_off(options)))
        if self.channels:
            messages, tools = as_taken(messages, tools)
            if (options or {}).get("reasoning_effort") == "none":
                options = {**(options or {}), "reasoning_effort": "low"}  # the lowest that the model has learned
        uses_tools = bool(tools) or any(each["role"] == "tool" or each.get("tool_calls") for each in messages)
        listed = list(tools)
        in_words = uses_tools and self.call_form.own
        said: dict[str, list[tuple[str, bool]]] = {}
        if in_words:
            messages, listed = in_own_form(messages, tools), []
        elif uses_tools:
            messages, said = with_marks(self.call_form, messages, tools)
            if self.call_form.id_length:
                messages = with_short_ids(messages, self.call_form.id_length)
        if self._template is None:
            return RenderedChat(
                text=_plain(messages, opens_turn=opens_turn, continues=continues), add_special=True, parse_special=False
            )
        opens_turn = opens_turn and not continues
        template = self._template

        def prompt(given: list[dict[str, Any]]) -> Rendered:
            return template.prompt(given, listed, opens_turn=opens_turn, options=options)

        try:
            rendered, messages, warnings = _with_system_messages(prompt, messages)
        except TemplateRefusesError as refused:
            try:
                if not in_words or messages[0]["role"] != "system":
                    raise refused
                # Some templates know no system message, in which the tools are described.
                rendered, messages, warnings = _with_system_messages(prompt, without_system(messages))
            except TemplateRefusesError:
                raise _refused(refused) from None
        text, spans = rendered.text, () if parse_special_in_content else rendered.literal
        if continues:
            end = self._end_of_content(text, messages, listed, options)
            text, spans = text[:end], tuple((begin, min(stop, end)) for begin, stop in spans if begin < end)
        text, spans = self._with_calls(text, spans, said)
        begins: Begins = "header" if self.channels else ""
        if self.channels and continues:
            begins = "final"
        elif self.channels and not reasons and not tools and text.endswith(TURN):
            text, begins = text + FINAL, "final"
        return RenderedChat(
            text=text,
            add_special=not Rendered(text, (), spans).begins_with(self._bos),
            parse_special=True,
            literal_spans=spans,
            reasoning=self._reasoning(text, messages[-1]["content"] if continues else None) if reasons else "none",
            begins=begins,
            warnings=warnings,
        )

    def _with_calls(
        self, text: str, spans: tuple[Span, ...], said: Mapping[str, Sequence[tuple[str, bool]]]
    ) -> tuple[str, tuple[Span, ...]]:
        """The text with calls instead of their marks; control tokens that their arguments spell stay text."""
        assert self._template is not None
        for mark, parts in said.items():
            at = text.find(mark)
            if at < 0:
                continue  # an older turn that the template leaves out
            new: list[Span] = []
            written = ""
            for part, is_frame in parts:
                if not is_frame and self._template.first_control(part) is not None:
                    new.append((at + len(written), at + len(written) + len(part)))
                written += part
            shift = len(written) - len(mark)
            before = [each for each in spans if each[1] <= at]
            behind = [(begin + shift, end + shift) for begin, end in spans if begin >= at + len(mark)]
            around = [each for each in spans if each[0] < at + len(mark) and each[1] > at]
            for begin, end in around:  # what the turn says besides its calls
                before += [(begin, at)] * (begin < at)
                behind = [(at + len(written), end + shift)] * (end > at + len(mark)) + behind
            text, spans = text[:at] + written + text[at + len(mark) :], (*before, *new, *behind)
        return text, spans

    def _end_of_content(
        self,
        text: str,
        messages: list[dict[str, Any]],
        tools: Sequence[dict[str, Any]],
        options: Mapping[str, Any] | None,
    ) -> int:
        """Behind the last message's content in the text of all messages. Raises ``ChatTemplateError``.

        A mark behind the content shows it: the content itself may also stand in the template's own text.
        """
        assert self._template is not None
        content = messages[-1]["content"]
        said = content.rstrip()
        tail = content[len(said) :]
        mark = unused_mark(text)
        if said and mark:
            last = {**messages[-1], "content": said + mark + tail}
            with contextlib.suppress(TemplateRefusesError):
                marked = self._template.text([*messages[:-1], last], list(tools), options=options)
                end = len(text[: max(0, marked.find(mark))].rstrip())  # some templates write what ends the content
                if end > 0 and text[:end].endswith(said.lstrip()):
                    return end + len(tail) if tail and text.startswith(tail, end) else end
        raise ChatTemplateError(
            "the last message cannot be continued: "
            + ("the model's chat template changes its text" if said else "it is empty")
        )

    def _reasoning(self, text: str, continued: str | None) -> Reasoning:
        if not self.thinks:
            return "none"
        if self.channels:
            return "may" if continued is None else "none"
        if continued is not None:
            return "open" if continued.rfind(THINK) > continued.rfind(END_OF_THINK) else "none"
        return "open" if text.rstrip().endswith(THINK) else "may"


def _with_system_messages(
    prompt: Callable[[list[dict[str, Any]]], Rendered], messages: list[dict[str, Any]]
) -> tuple[Rendered, list[dict[str, Any]], tuple[str, ...]]:
    """The prompt, the messages that it was made of, and what is to be said of them.

    Many templates take or write a system message at the beginning alone, and one only: then all stand in that. Raises
    ``TemplateRefusesError``.
    """
    system = [each["content"] for each in messages if each["role"] == "system" and each["content"].strip()]
    late = sum(each["role"] == "system" for each in messages[1:])
    refused: TemplateRefusesError | None = None
    rendered: Rendered | None = None
    try:
        rendered = prompt(messages)
        n_lost = _n_lost(prompt, rendered, messages)
    except TemplateRefusesError as error:
        refused, n_lost = error, len(system)
    if n_lost and late:
        others = [each for each in messages if each["role"] != "system"]
        joined = [{"role": "system", "content": "\n\n".join(system)}, *others]
        with contextlib.suppress(TemplateRefusesError):
            whole = prompt(joined)
            if not _n_lost(prompt, whole, joined):
                said = f"system messages moved to the beginning: {late} (the chat template has one there alone)"
                return whole, joined, (said,)
    if refused is not None:
        raise refused
    assert rendered is not None
    said = f"system messages left out: {n_lost} (the chat template does not write them)"
    return rendered, messages, (said,) if n_lost else ()


def _n_lost(
    prompt: Callable[[list[dict[str, Any]]], Rendered], rendered: Rendered, messages: Sequence[dict[str, Any]]
) -> int:
    """How many system messages are not in the prompt that was made of these. A template may change their text: a mark
    behind it shows whether it is there."""
    absent = [
        i
        for i, each in enumerate(messages)
        if each["role"] == "system" and (said := each["content"].strip()) and said not in rendered.text
    ]
    mark = unused_mark(rendered.text) if absent else None
    if mark is None:
        return len(absent)
    marked = [{**each, "content": each["content"] + mark} if i in absent else each for i, each in enumerate(messages)]
    with contextlib.suppress(TemplateRefusesError):
        return max(len(absent) - prompt(marked).text.count(mark), 0)
    return len(absent)


def _is_off(options: Mapping[str, Any] | None) -> bool:
    """Whether variables of a template turn reasoning off."""
    given = options or {}
    return given.get("reasoning_effort") == "none" or any(given.get(name) is False for name in THINKING)


def _refused(refused: TemplateRefusesError) -> ChatTemplateError:
    error = refused.__cause__
    forbidden = isinstance(error, SecurityError)
    does = "does something that is not allowed" if forbidden else "refuses these messages"
    return ChatTemplateError(f"the model's chat template {does}: {error}")


def _plain(messages: list[dict[str, Any]], *, opens_turn: bool, continues: bool) -> str:
    turns = [f"{_FALLBACK_NAMES[each['role']]}: {each['content']}" for each in messages]
    return "\n\n".join([*turns, "Assistant:"] if opens_turn and not continues else turns)
