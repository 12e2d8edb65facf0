"""Takes a reply apart while it is generated: reasoning, text, and tool calls with their arguments."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from slm.serve.tools.call_form import END_OF_THINK, THINK, CallForm, Reasoning
from slm.serve.tools.written_arguments import ArgumentsReader


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Something that a reply's text adds: to its reasoning, to its content, or to the arguments of a call.

    A ``call`` begins one; its text is the function's name.
    """

    kind: Literal["reasoning", "content", "call", "arguments"]
    text: str


class Reader:
    """Takes a reply apart by its states: ``_in_STATE`` takes what it knows of the text that is held, and says whether
    the next state may know more. ``state``: the first one."""

    def __init__(self, state: str) -> None:
        self._state = state
        self._held = ""
        """Text of a kind that is not known yet."""
        self._arguments: JsonEnd | ArgumentsReader = JsonEnd()

    @property
    def plain(self) -> bool:
        """Whether all text is content."""
        return False

    @property
    def in_call(self) -> bool:
        """Whether a call has begun that is not whole."""
        return self._state in ("name", "arguments")

    def push(self, text: str, *, last: bool = False) -> list[Piece]:
        """What the text adds. ``last``: no more comes."""
        self._held += text
        out: list[Piece] = []
        while getattr(self, f"_in_{self._state}")(out, last):
            pass
        return out

    def _in_arguments(self, out: list[Piece], last: bool) -> bool:
        text, n = self._arguments.take(self._held)
        if text:
            out.append(Piece(kind="arguments", text=text))
        self._held = self._held[n:]
        if self._arguments.done:
            self._state = "after"
        return self._arguments.done


class ReplyReader(Reader):
    """``form``: that of the calls; None where the reply can hold none. ``reasoning``: where it may hold any.
    ``texts``: by function, the parameters that are texts whatever they look like."""

    def __init__(
        self,
        form: CallForm | None = None,
        reasoning: Reasoning = "none",
        texts: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        super().__init__({"none": "text", "may": "begin", "open": "reasoning"}[reasoning])
        self._form, self._texts = form, texts or {}
        self._has_text = False
        """Whether any content or reasoning came since the last change of kind: white space before it is dropped."""
        self._trims = reasoning == "open"

    @property
    def plain(self) -> bool:
        return self._form is None and self._state == "text" and not self._trims and not self._held

    def push(self, text: str, *, last: bool = False) -> list[Piece]:
        if self.plain:
            return [Piece(kind="content", text=text)] if text else []
        return super().push(text, last=last)

    def _in_begin(self, out: list[Piece], last: bool) -> bool:
        """Whether the reply begins with reasoning."""
        bare = self._held.lstrip()
        if bare.startswith(THINK):
            self._held = bare[len(THINK) :]
            self._go("reasoning")
            return True
        if THINK.startswith(bare) and not last:
            return False
        self._state = "text"
        return True

    def _in_reasoning(self, out: list[Piece], last: bool) -> bool:
        before, found, behind = self._held.partition(END_OF_THINK)
        if found:
            self._emit(out, "reasoning", before.rstrip())
            self._held = behind
            self._go("text")
            return True
        self._emit_known(out, "reasoning", END_OF_THINK, last)
        return False

    def _in_text(self, out: list[Piece], last: bool) -> bool:
        form = self._form
        if form is None:
            self._emit_known(out, "content", "", last)
            return False
        if form.at_start:
            bare = self._held.lstrip()
            if bare.startswith(form.mark):
                self._held = bare[len(form.prefix) :]
                self._state = "name"
                return True
            if form.mark.startswith(bare) and not last:
                return False
            self._form = None
            return True
        before, found, _ = self._held.partition(form.mark)
        if found:
            rest = self._held[len(before) :]
            if len(rest) < len(form.prefix) and not last:
                self._emit(out, "content", before.rstrip())
                self._held = rest
                return False
            self._emit(out, "content", before.rstrip())
            self._held = rest[len(form.prefix) :]
            self._state = "name"
            return True
        self._emit_known(out, "content", form.mark, last)
        return False

    def _in_name(self, out: list[Piece], last: bool) -> bool:
        form = self._form
        assert form is not None
        ends = [form.suffix, form.between or ""]
        if form.middle:
            name, found, behind = self._held.partition(form.middle)
        else:  # then what comes next shows where the name ends
            marks = [form.fields.before if form.fields is not None else "{", *filter(None, ends)]
            at = min((at for mark in marks if (at := self._held.find(mark)) >= 0), default=-1)
            name, found, behind = self._held[:at], at >= 0, self._held[max(at, 0) :]  # type: ignore[assignment]
        if not found:
            return False
        name = name.rpartition(form.behind_name[0])[0] if form.behind_name is not None else name
        out.append(Piece(kind="call", text=name))
        self._held, self._state, self._arguments = behind, "arguments", JsonEnd()
        if form.fields is not None:
            self._arguments = ArgumentsReader(form.fields, self._texts.get(name, ()), ends)
        return True

    def _in_after(self, out: list[Piece], last: bool) -> bool:
        form = self._form
        assert form is not None
        if form.between is None or len(self._held) < len(form.between) or not self._held.startswith(form.between):
            return False
        self._held, self._state = self._held[len(form.between) :], "name"
        return True

    def _go(self, state: str) -> None:
        self._state, self._has_text, self._trims = state, False, True

    def _emit_known(self, out: list[Piece], kind: Literal["reasoning", "content"], mark: str, last: bool) -> None:
        """Emits what cannot be the beginning of ``mark``, or white space in front of it."""
        keep = 0 if last else begun(self._held, (mark,))
        known = self._held[: len(self._held) - keep]
        if mark and not last:
            known = known.rstrip()
        self._held = self._held[len(known) :]
        self._emit(out, kind, known)

    def _emit(self, out: list[Piece], kind: Literal["reasoning", "content"], text: str) -> None:
        if self._trims and not self._has_text:
            text = text.lstrip()
        if text:
            self._has_text = True
            out.append(Piece(kind=kind, text=text))


def begun(text: str, marks: Collection[str]) -> int:
    """How many characters at the end of a text may be the beginning of one of the marks, none of which is whole."""
    longest = max(map(len, marks))
    return next((n for n in range(longest - 1, 0, -1) if any(text.endswith(each[:n]) for each in marks)), 0)


class JsonEnd:
    """Finds where a JSON object ends that arrives in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._escaped = False
        self.done = False

    def take(self, text: str) -> tuple[str, int]:
        """What of the text belongs to the object, and how many characters these are."""
        for i, char in enumerate(text):
            if self._escaped:
                self._escaped = False
            elif self._in_string:
                self._escaped, self._in_string = char == "\\", char != '"'
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self.done = True
                    return text[: i + 1], i + 1
        return text, len(text)
