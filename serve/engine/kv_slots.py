"""The KV cache's slots (llama.cpp's sequence numbers): which sequence holds which, and what free ones cache."""

from __future__ import annotations


class KvSlots:
    """``n`` slots. A free one may still cache the tokens of its last sequence, for one with the same prefix."""

    def __init__(self, n: int) -> None:
        self._holder: list[str | None] = [None] * n
        self._cached: list[tuple[int, ...]] = [()] * n
        self._released: list[int] = [0] * n
        """When each was last released, as a count of releases; 0: never."""
        self._n_releases = 0

    @property
    def n(self) -> int:
        return len(self._holder)

    def free(self) -> list[int]:
        """Free slots: first those that cache nothing, ascending, then the others, the longest unused first."""
        slots = [slot for slot, holder in enumerate(self._holder) if holder is None]
        return sorted(
            slots, key=lambda slot: (bool(self._cached[slot]), self._released[slot] if self._cached[slot] else 0)
        )

    def cached(self, slot: int) -> tuple[int, ...]:
        """The tokens that a free slot still caches, from position 0 on."""
        return self._cached[slot]

    def take(self, slot: int, sequence_id: str) -> None:
        """Gives a free slot to a sequence. Raises ``RuntimeError`` for one that is held: its cells would be mixed."""
        if self._holder[slot] is not None:
            raise RuntimeError(f"slot {slot} is held by {self._holder[slot]}")
        self._holder[slot] = sequence_id
        self._cached[slot] = ()

    def release(self, slot: int, sequence_id: str, tokens: tuple[int, ...] = ()) -> None:
        """Takes a slot back from the sequence that holds it; ``tokens`` stay cached. Raises ``RuntimeError`` where
        another holds it."""
        if self._holder[slot] != sequence_id:
            raise RuntimeError(f"slot {slot} is not {sequence_id}'s")
        self._n_releases += 1
        self._holder[slot] = None
        self._cached[slot] = tokens
        self._released[slot] = self._n_releases

    def put_cached(self, slot: int, tokens: tuple[int, ...]) -> None:
        """A free slot holds these tokens now. Raises ``RuntimeError`` where it is held."""
        self.drop_cached(slot)
        self._n_releases += 1
        self._cached[slot], self._released[slot] = tokens, self._n_releases

    def is_free(self, slot: int) -> bool:
        """Whether no sequence holds it."""
        return self._holder[slot] is None

    def drop_cached(self, slot: int) -> None:
        """A free slot caches nothing any more. Raises ``RuntimeError`` where it is held."""
        if self._holder[slot] is not None:
            raise RuntimeError(f"slot {slot} is held by {self._holder[slot]}")
        self._cached[slot] = ()
