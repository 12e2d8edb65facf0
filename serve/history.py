"""Which messages of a conversation go into a prompt when not all of them fit the context: the newest turns.

A turn is a user's message (or several in a row) with what follows it up to the next one. Turns are dropped from the
oldest on, as a whole, so that users and replies still alternate. System messages always stay, and so does the last
turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Message = dict[str, Any]

REPLY_PART = 4
"""Turns are dropped where they would leave less than this part of the context for a reply (or less than the request's
``max_tokens``, if that is smaller)."""


def prompt_limit(context: int, max_tokens: int | None) -> int:
    """Most tokens of a prompt that leaves room for a reply in a context of this many tokens."""
    part = context // REPLY_PART
    return context - (part if max_tokens is None else min(max_tokens, part))


class HistoryWindow:
    """Searches for the fewest turns to drop. The caller counts the tokens of a prompt with ``messages`` and gives the
    number to ``counted``, until that returns True; then ``messages`` are those to send.

    There are about log2 of the number of turns to count. If the last turn alone has too many tokens, it stays
    nevertheless: whoever computes the prompt refuses it.
    """

    def __init__(self, messages: Sequence[Message], limit: int) -> None:
        """``limit``: most tokens of the prompt."""
        self._all, self.limit = list(messages), limit
        self._turns = _turns(self._all)
        self._n = self._low = 0
        self._high = max(len(self._turns) - 1, 0)

    @property
    def messages(self) -> list[Message]:
        """What is left without the turns that are dropped."""
        dropped = {i for turn in self._turns[: self._n] for i in turn}
        return [message for i, message in enumerate(self._all) if i not in dropped]

    @property
    def n_dropped(self) -> int:
        """Messages that are not among ``messages``."""
        return sum(map(len, self._turns[: self._n]))

    def counted(self, n_tokens: int) -> bool:
        """Takes the number of tokens of a prompt with ``messages``. Returns whether they are the final ones; if not,
        they are other ones now."""
        if n_tokens <= self.limit:
            self._high = self._n
        else:
            self._low = self._n + 1
        if self._low < self._high:
            self._n = (self._low + self._high) // 2
            return False
        self._n = self._rounded(self._high)
        return True

    def _rounded(self, n: int) -> int:
        """The number of turns to drop, rounded up to a multiple of a power of two, at most half of the turns that fit.

        The next requests of the conversation drop the same turns, so the prefix cache stays valid for them."""
        n_fit = len(self._turns) - n
        if not n or n_fit < 4:
            return n
        step = 1 << ((n_fit // 2).bit_length() - 1)
        return min(-(-n // step) * step, len(self._turns) - 1)


def _turns(messages: list[Message]) -> list[list[int]]:
    """The messages of each turn, by number."""
    turns: list[list[int]] = []
    before = None
    for i, message in enumerate(messages):
        role = message["role"]
        if role == "system":
            continue
        if not turns or (role == "user" and before != "user"):
            turns.append([])
        turns[-1].append(i)
        before = role
    return turns
