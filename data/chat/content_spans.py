"""Finds the control tokens that a chat template writes itself, and keeps those spelled in a message's content apart.

A rendered template is one text. To see which of its parts are contents, the messages are rendered a second time with
marks around each content. Where the marks change what the template does (it tests how a content begins, or cuts it),
only the names of control tokens inside the contents are marked. Where that does not work either, every name that a
content spells stays text, the template's own marks of that name included: text is never lost, and never gets a role.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

Span = tuple[int, int]
"""From the first character to behind the last."""
Render = Callable[[list[str]], str | None]
"""The template's text with these contents; None where it refuses them."""

_MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
"""Noncharacters of Unicode: no text should have them, and no filter of Jinja changes them."""


def unused_mark(text: str) -> str | None:
    """A noncharacter that the text does not have; None where it has them all."""
    return next((each for each in _MARKS if each not in text), None)


CHANNEL_MARKS = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>")
"""gpt-oss's control tokens within a turn."""


def grammar_name(control: str) -> str:
    """A control token's name in a grammar: llguidance knows names in angle brackets alone, and Mistral's tokens
    ([TOOL_CALLS]) have others."""
    return control if control.startswith("<") and control.endswith(">") else f"<control:{control.strip('[]<>')}>"


class ControlTokens:
    """The names of a vocabulary's control tokens."""

    def __init__(self, names: Iterable[str]) -> None:
        alternatives = _alternatives({name for name in names if name})
        self._names = re.compile(alternatives)
        # A template may change the case of a content.
        self._names_in_any_case = re.compile(alternatives, re.IGNORECASE)

    def first(self, text: str) -> int | None:
        """Where the first name begins in a text; None where it has none."""
        found = self._names.search(text)
        return None if found is None else found.start()

    def spelled_in(self, text: str) -> bool:
        """Whether a text spells a name, in any case."""
        return self._names_in_any_case.search(text) is not None

    def literal_spans(self, text: str, contents: list[str], render: Render) -> tuple[Span, ...]:
        """The parts of a rendered ``text`` in which no control token may be parsed, in order.

        Each reaches from one of the template's own control tokens (or the text's beginning) to the next (or the end).
        So whoever tokenizes the parts one by one cuts the text only where a control token cuts it anyway.
        """
        if self._names.search(text) is None:
            return ()
        own = self._own(text, contents, render)
        gaps = _gaps(own, len(text))
        return tuple((begin, end) for begin, end in gaps if self._names.search(text, begin, end) is not None)

    def _own(self, text: str, contents: list[str], render: Render) -> list[Span]:
        """The control tokens that the template wrote."""
        for mark in (_mark_whole, self._mark_names):
            spans = _content_spans(text, contents, render, mark)
            if spans is not None:
                gaps = _gaps(spans, len(text))
                return [match.span() for gap in gaps for match in self._names.finditer(text, *gap)]
        spelled = "\n".join(contents).casefold()
        return [match.span() for match in self._names.finditer(text) if match[0].casefold() not in spelled]

    def _mark_names(self, content: str, opening: str, closing: str) -> str:
        return self._names_in_any_case.sub(lambda match: opening + match[0] + closing, content)


def _alternatives(names: set[str], depth: int = 8) -> str:
    """A regular expression for the longest of ``names`` at a place. What names begin with alike is read once: some
    vocabularies have a thousand names that differ in their last characters."""
    first, last = min(names, default=""), max(names, default="")
    n = next((i for i, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    prefix, rests = first[:n], {name[n:] for name in names}
    if depth == 0 or len(rests) <= 1:
        return "|".join(map(re.escape, sorted(names, key=len, reverse=True))) or "(?!)"
    by_first: dict[str, set[str]] = {}
    for rest in filter(None, rests):
        by_first.setdefault(rest[0], set()).add(rest)
    branches = "|".join(_alternatives(each, depth - 1) for each in by_first.values())
    return f"{re.escape(prefix)}(?:{branches}){'?' if '' in rests else ''}"


def _mark_whole(content: str, opening: str, closing: str) -> str:
    """White space at the ends stays outside of the marks: most templates trim it."""
    core = content.strip()
    if not core:
        return content
    begin = len(content) - len(content.lstrip())
    return content[:begin] + opening + core + closing + content[begin + len(core) :]


def _content_spans(
    text: str, contents: list[str], render: Render, mark: Callable[[str, str, str], str]
) -> list[Span] | None:
    """Where the marked parts of the contents are in ``text``; None where marks change what the template writes."""
    unused = (each for each in _MARKS if each not in text and not any(each in content for content in contents))
    opening, closing = next(unused, None), next(unused, None)
    if opening is None or closing is None:
        return None
    marked = render([mark(content, opening, closing) for content in contents])
    if marked is None:
        return None
    spans: list[Span] = []
    plain: list[str] = []
    n, begin = 0, -1
    for piece in re.split(f"([{opening}{closing}])", marked):
        if piece == opening:
            if begin >= 0:
                return None
            begin = n
        elif piece == closing:
            if begin < 0:
                return None
            spans.append((begin, n))
            begin = -1
        else:
            plain.append(piece)
            n += len(piece)
    return spans if begin < 0 and "".join(plain) == text else None


def _gaps(spans: list[Span], length: int) -> Iterator[Span]:
    """What lies between the spans of a text of ``length`` characters, without empty gaps."""
    start = 0
    for begin, end in [*spans, (length, length)]:
        if begin > start:
            yield start, begin
        start = end
