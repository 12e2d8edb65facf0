"""From chat messages to the text of a prompt, with the model's own template or a plain one.

A template is a program from a file that anybody may have made, so it runs in a sandbox (``data.chat.jinja``). Control
tokens spelled in a message's content stay text (``data.chat.content_spans``).
"""

from __future__ import annotations

from dataclasses import dataclass

from jinja2.exceptions import SecurityError

from data.chat.content_spans import Span
from data.chat.template import ChatTemplate, TemplateRefusesError
from data.errors import UserError
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
        self._bos = info.bos
        self._template: ChatTemplate | None = None
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

    def render(self, messages: list[dict[str, str]], *, parse_special_in_content: bool = False) -> RenderedChat:
        """The prompt. Each message has a ``role`` and a ``content``.

        With ``parse_special_in_content``, control tokens spelled in a content are parsed like the template's own.
        Raises ``ChatTemplateError``.
        """
        if self._template is None:
            return RenderedChat(text=_plain(messages), add_special=True, parse_special=False)
        spans: tuple[Span, ...] = ()
        try:
            if parse_special_in_content:
                text = self._template.text(messages, prompt=True)
            else:
                rendered = self._template.prompt(messages)
                text, spans = rendered.text, rendered.literal
        except TemplateRefusesError as refused:
            error = refused.__cause__
            forbidden = isinstance(error, SecurityError)
            does = "does something that is not allowed" if forbidden else "refuses these messages"
            raise ChatTemplateError(f"the model's chat template {does}: {error}") from None
        starts_with_bos = bool(self._bos) and text.startswith(self._bos) and not (spans and spans[0][0] == 0)
        return RenderedChat(text=text, add_special=not starts_with_bos, parse_special=True, literal_spans=spans)


def _plain(messages: list[dict[str, str]]) -> str:
    turns = [f"{_FALLBACK_NAMES[each['role']]}: {each['content']}" for each in messages]
    return "\n\n".join([*turns, "Assistant:"])
