"""Prompts that had to leave their slots for others, in memory or in files: they come back when they are asked for
again. No model, no clock.

With four slots and five conversations that take turns, each would be computed anew at each of its turns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

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


class Files(Protocol):
    """Prompts for which memory has no room (``PromptFiles``)."""

    @property
    def files(self) -> Sequence[InFile]:
        """Those that are there."""

    def keep(self, prompt: Displaced) -> None:
        """Has one more."""

    def read(self, file: Any) -> Displaced | None:
        """What one of ``files`` holds; None where it is gone."""


class InFile(Protocol):
    """One of them."""

    @property
    def tokens(self) -> tuple[int, ...]:
        """What the slot held."""

    @property
    def kept(self) -> Collection[int]:
        """After how many of them there is a state."""


class DisplacedPrompts:
    """At most ``most_bytes`` of them; then the longest unused go, into ``files`` where there are such. ``has_room``:
    whether the machine has memory for a number of bytes more."""

    def __init__(self, most_bytes: int, has_room: Callable[[int], bool], files: Files | None = None) -> None:
        self._most_bytes, self._has_room, self._files = most_bytes, has_room, files
        self._kept: list[Displaced] = []
        """The longest unused first."""

    def __bool__(self) -> bool:
        """Whether there is one."""
        return bool(self._kept or (self._files is not None and self._files.files))

    @property
    def n_bytes(self) -> int:
        """What they take."""
        return sum(each.n_bytes for each in self._kept)

    def wants(self, tokens: Sequence[int], n_reused: int) -> bool:
        """Whether to keep a slot's tokens, of which the next sequence goes on from the first ``n_reused``."""
        if not (self._most_bytes or self._files) or len(tokens) - n_reused < LEAST:
            return False
        return not any(each.tokens[: len(tokens)] == tuple(tokens) for each in self._kept)

    def keep(self, new: Displaced) -> None:
        """Keeps what a slot holds, and no longer what is a beginning of it."""
        kept = [each for each in self._kept if new.tokens[: len(each.tokens)] != each.tokens]
        leave = []
        if new.n_bytes <= self._most_bytes and self._has_room(new.n_bytes):
            while kept and sum(each.n_bytes for each in kept) + new.n_bytes > self._most_bytes:
                leave.append(kept.pop(0))
            kept.append(new)
        else:
            leave.append(new)
        self._kept = kept
        if self._files is not None:
            for each in leave:
                self._files.keep(each)

    def best(self, prompt: Sequence[int], *, more_than: int, whole: bool) -> Displaced | InFile | None:
        """The one with the longest beginning in common with a prompt: ``LEAST`` tokens more than slots have
        (``more_than``), and a good part of it. ``whole``: a slot can only be cut back to a state that was kept."""
        found: Displaced | InFile | None = None
        n_found = more_than + LEAST - 1
        for each in [*self._kept, *(self._files.files if self._files is not None else ())]:
            n = common_prefix(prompt, each.tokens)
            if whole:
                n = kept_prefix(n, len(each.tokens), tuple(each.kept))
            if n > n_found and 4 * n >= len(each.tokens):
                found, n_found = each, n
        return found

    def take(self, prompt: Displaced | InFile) -> Displaced | None:
        """It will be in a slot again. None where its file is gone."""
        if isinstance(prompt, Displaced):
            self._kept.remove(prompt)
            return prompt
        assert self._files is not None
        return self._files.read(prompt)
