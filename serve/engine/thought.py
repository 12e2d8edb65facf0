"""The limit of a reply's reasoning: when it is reached, the end mark is written for the model, which then answers.

Pure Python: no model, no clock.
"""

from __future__ import annotations

from collections.abc import Sequence


class Thought:
    """Follows one reply. ``limit``: most tokens of reasoning. ``opened``: the prompt ends inside of it; else a reply
    that begins with ``begin`` has some. ``end``: the mark behind it; ``end_tokens``: what the limit
    writes."""

    def __init__(self, limit: int, *, opened: bool, begin: str, end: str, end_tokens: Sequence[int]) -> None:
        self._limit, self._begin, self._end = limit, begin, end
        self._end_tokens = list(end_tokens)
        self._state = "inside" if opened else "before"
        self._text = ""
        """What came before the reasoning, then the end of what came in it: ``end`` may begin there."""
        self._n = 0
        self.was_cut = False
        """Whether the limit ended it."""

    def push(self, text: str) -> None:
        """The reply has one token more."""
        self._text += text
        if self._state == "before":
            bare = self._text.lstrip()
            if bare.startswith(self._begin):
                self._state, self._text = "inside", bare[len(self._begin) :]
            elif not self._begin.startswith(bare):
                self._state = "over"
        elif self._state == "inside":
            self._n += 1
            if self._end in self._text:
                self._state = "over"
            self._text = self._text[-len(self._end) :]

    @property
    def is_due(self) -> bool:
        """Whether the reasoning has to end now."""
        return self._state == "inside" and self._n >= self._limit

    def cut(self) -> list[int]:
        """The tokens that end it, which come next."""
        self._state, self.was_cut = "over", True
        return self._end_tokens
