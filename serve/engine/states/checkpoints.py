"""States of slots at some positions, for models that cannot cut a slot back there: those with short convolutions or
another recurrent state (LFM2, Mamba), and with sliding windows (Gemma 3). Plain data: no model, no clock.

A state is small beside the keys and values that the slot holds anyway; of a window it is the window's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

MOST_BYTES = 256 << 20
"""Most bytes of all states together. Beyond it the oldest are dropped."""


class Checkpoints:
    """States by slot and number of tokens."""

    def __init__(self) -> None:
        self._states: dict[tuple[int, int], bytes] = {}
        """By (slot, tokens), the oldest first."""
        self._n_bytes = 0

    def positions(self, slots: Sequence[int]) -> Mapping[int, tuple[int, ...]]:
        """For each of the slots, after how many tokens there is a state."""
        found: dict[int, list[int]] = {slot: [] for slot in slots}
        for slot, n in self._states:
            if slot in found:
                found[slot].append(n)
        return {slot: tuple(positions) for slot, positions in found.items()}

    def keep(self, slot: int, n: int, state: bytes) -> None:
        """The state of a slot after its first ``n`` tokens."""
        self._forget((slot, n))
        self._states[slot, n] = state
        self._n_bytes += len(state)
        while self._n_bytes > MOST_BYTES:
            self._forget(next(iter(self._states)))

    def get(self, slot: int, n: int) -> bytes | None:
        """What ``keep`` got, unless it was dropped."""
        return self._states.get((slot, n))

    def of(self, slot: int) -> dict[int, bytes]:
        """All states of a slot, by number of tokens."""
        return {n: state for (each, n), state in self._states.items() if each == slot}

    def drop(self, slot: int, after: int = 0) -> None:
        """Forgets a slot's states after more than this many tokens."""
        for key in [key for key in self._states if key[0] == slot and key[1] > after]:
            self._forget(key)

    def clear(self) -> None:
        """Forgets all."""
        self._states.clear()
        self._n_bytes = 0

    def _forget(self, key: tuple[int, int]) -> None:
        self._n_bytes -= len(self._states.pop(key, b""))
