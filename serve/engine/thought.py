"""The limit of a reply's reasoning: when it is reached, the end mark is written for the model, which then answers.

Pure Python: no model, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


class Thought:
    """Follows one reply. ``limit``: most tokens of reasoning, over all parts of it. ``opened``: the prompt ends inside
    of it; else a reply that begins with ``begin`` has some. ``ends``: marks, one of which stands behind it;
    ``end_tokens``: what the limit writes. ``again``: what it writes where ``begin`` comes again, the best first; empty:
    that has a meaning at the beginning of the reply alone."""

    def __init__(
        self,
        limit: int,
        *,
        opened: bool,
        begin: str,
        ends: Sequence[str],
        end_tokens: Sequence[int],
        again: Sequence[Sequence[int]] = (),
    ) -> None:
        self._limit, self._begin, self._ends = limit, begin, ends
        self._end_tokens, self._again = list(end_tokens), [list(each) for each in again]
        self._state = "inside" if opened else "before"
        self._text = ""
        """What came before the reasoning, then the end of what came in it (a mark may begin there), then the end of
        what came behind it."""
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
            ended = min((at for each in self._ends if (at := self._text.find(each)) >= 0), default=-1)
            if ended >= 0:
                self._state, self._text = "over", self._text[ended:]
            else:
                self._n += 1
                self._text = self._text[-max(map(len, self._ends)) :]
        if self._state == "over":
            _, found, behind = self._text.partition(self._begin)
            if found and self._again:
                self._state, self._text = "inside", behind
            else:
                self._text = self._text[-len(self._begin) :]

    @property
    def is_due(self) -> bool:
        """Whether the reasoning has to end now."""
        return self._state == "inside" and self._n >= self._limit

    def cut(self, allows: Callable[[list[int]], bool] = bool) -> list[int]:
        """The tokens that end it, which come next; none where ``allows`` is true of none of those that could."""
        could = self._again if self.was_cut else [self._end_tokens]
        tokens = next((each for each in could if allows(each)), [])
        if tokens:
            self._state, self._text, self.was_cut = "over", "", True
        return tokens
