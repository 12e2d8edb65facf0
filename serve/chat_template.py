"""From chat messages to the text of a prompt, with the model's own template or a plain one.

A template is a program from a file that anybody may have made, so it runs in a sandbox (``data.chat.jinja``). Control
tokens spelled in a message's content stay text (``data.chat.content_spans``).
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from jinja2 import TemplateError
from jinja2.exceptions import SecurityError

from data.chat import jinja
from data.chat.content_spans import ControlTokens, Span
from serve.engine.messages import ModelInfo

FALLBACK_STOP = ("\n\nUser:", "\nUser:", "\n\nSystem:", "\nSystem:")
"""Stop strings of the plain template, which has no token that ends a turn."""

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


class ChatPrompt:
    """Renders messages for one model.

    ``own`` is whether the model's file has a valid template. Without one the messages become ``System: ...``,
    ``User: ...`` and ``Assistant: ...`` paragraphs, which a base model can at least continue.
    """

    def __init__(self, info: ModelInfo) -> None:
        self._bos, self._eos = info.bos, info.eos
        self._control_tokens = ControlTokens(info.control_tokens)
        self.own = False
        self.problem: str | None = None
        """Why the model's own template is not used; None where it is, or where there is none."""
        if info.chat_template:
            try:
                self._template = jinja.environment().from_string(info.chat_template)
                self.own = True
            except (TemplateError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
                self.problem = f"the model's chat template is not valid ({error}); using the plain one"

    @property
    def stop(self) -> tuple[str, ...]:
        """Stop strings that the template needs."""
        return () if self.own else FALLBACK_STOP

    def render(self, messages: list[dict[str, str]], *, parse_special_in_content: bool = False) -> RenderedChat:
        """The prompt. Each message has a ``role`` and a ``content``.

        With ``parse_special_in_content``, control tokens spelled in a content are parsed like the template's own.
        Raises ``ChatTemplateError``.
        """
        if not self.own:
            return RenderedChat(text=_plain(messages), add_special=True, parse_special=False)
        now = datetime.datetime.now()
        text = self._render(messages, now)

        def render_again(contents: list[str]) -> str | None:
            changed = [{**each, "content": content} for each, content in zip(messages, contents, strict=True)]
            try:
                return self._render(changed, now)
            except ChatTemplateError:
                return None

        spans: tuple[Span, ...] = ()
        if not parse_special_in_content:
            contents = [each["content"] for each in messages]
            spans = self._control_tokens.literal_spans(text, contents, render_again)
        starts_with_bos = bool(self._bos) and text.startswith(self._bos) and not (spans and spans[0][0] == 0)
        return RenderedChat(text=text, add_special=not starts_with_bos, parse_special=True, literal_spans=spans)

    def _render(self, messages: list[dict[str, str]], now: datetime.datetime) -> str:
        try:
            return self._template.render(
                messages=messages,
                add_generation_prompt=True,
                bos_token=self._bos,
                eos_token=self._eos,
                tools=None,
                documents=None,
                strftime_now=now.strftime,
            )
        except SecurityError as error:
            raise ChatTemplateError(f"the model's chat template does something that is not allowed: {error}") from None
        except Exception as error:  # a template can raise whatever Python can
            raise ChatTemplateError(f"the model's chat template refuses these messages: {error}") from None


def _plain(messages: list[dict[str, str]]) -> str:
    turns = [f"{_FALLBACK_NAMES[each['role']]}: {each['content']}" for each in messages]
    return "\n\n".join([*turns, "Assistant:"])
