"""Prompts that had to leave their slots for others, in memory: they come back when they are asked for again. Plain
data: no model, no clock.

With four slots and five conversations that take turns, each would be computed anew at each of its turns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from slm.serve.engine.batch_plan import common_prefix, kept_prefix

LEAST = 128
"""Tokens: fewer are computed again as fast as they are kept and put back."""
TOKEN_BYTES = 36
"""A token's number in a tuple."""


@dataclass(frozen=True, slots=True)
class Displaced:
    """What a slot held."""

    tokens: tuple[int, ...]
    state: bytes
    kept: Mapping[int, bytes] = field(default_factory=dict)
    """States after some of the tokens, where the slot cannot be cut back without one."""

    @property
    def n_bytes(self) -> int:
        """What it takes."""
        return len(self.state) + sum(map(len, self.kept.values())) + TOKEN_BYTES * len(self.tokens)


class DisplacedPrompts:
    """At most ``most_bytes`` of them; then the longest unused go. ``has_room``: whether the machine has memory for so
    many bytes more."""

    def __init__(self, most_bytes: int, has_room: Callable[[int], bool]) -> None:
        self._most_bytes, self._has_room = most_bytes, has_room
        self._kept: list[Displaced] = []
        """The longest unused first."""

    def __bool__(self) -> bool:
        """Whether there is one."""
        return bool(self._kept)

    @property
    def n_bytes(self) -> int:
        """What they take."""
        return sum(each.n_bytes for each in self._kept)

    def wants(self, tokens: Sequence[int], n_reused: int) -> bool:
        """Whether to keep a slot's tokens, of which the next sequence goes on from the first ``n_reused``."""
        if not self._most_bytes or len(tokens) - n_reused < LEAST:
            return False
        return not any(each.tokens[: len(tokens)] == tuple(tokens) for each in self._kept)

    def keep(self, new: Displaced) -> None:
        """Keeps what a slot holds, and no longer what is a beginning of it."""
        kept = [each for each in self._kept if new.tokens[: len(each.tokens)] != each.tokens]
        while kept and sum(each.n_bytes for each in kept) + new.n_bytes > self._most_bytes:
            kept.pop(0)
        if new.n_bytes <= self._most_bytes and self._has_room(new.n_bytes):
            kept.append(new)
        self._kept = kept

    def best(self, prompt: Sequence[int], *, more_than: int, whole: bool) -> Displaced | None:
        """The one with the longest beginning in common with a prompt: ``LEAST`` tokens more than slots have
        (``more_than``), and a good part of it. ``whole``: a slot can only be cut back to a state that was kept."""
        found, n_found = None, more_than + LEAST - 1
        for each in self._kept:
            n = common_prefix(prompt, each.tokens)
            if whole:
                n = kept_prefix(n, len(each.tokens), tuple(each.kept))
            if n > n_found and 4 * n >= len(each.tokens):
                found, n_found = each, n
        return found

    def take(self, prompt: Displaced) -> None:
        """It is in a slot again."""
        self._kept.remove(prompt)
