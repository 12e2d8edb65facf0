"""The cache's sequence numbers: which are free, which sequence holds which, and what the free ones still hold."""

from __future__ import annotations


class SlotTable:
    """``n`` slots. A free one may still hold the tokens of its last sequence, for one that begins alike."""

    def __init__(self, n: int) -> None:
        self._holder: list[str | None] = [None] * n
        self._kept: list[tuple[int, ...]] = [()] * n
        self._released: list[int] = [0] * n
        """When, by the count of releases; 0: never held."""
        self._clock = 0

    def free(self) -> list[int]:
        """Free slots: first those that hold nothing, ascending, then the longest unused first."""
        slots = [slot for slot, holder in enumerate(self._holder) if holder is None]
        return sorted(slots, key=lambda slot: (bool(self._kept[slot]), self._released[slot] if self._kept[slot] else 0))

    def kept(self, slot: int) -> tuple[int, ...]:
        """The tokens that a free slot still holds, from position 0 on."""
        return self._kept[slot]

    def take(self, slot: int, sequence_id: str) -> None:
        """Gives a free slot to a sequence."""
        assert self._holder[slot] is None, f"slot {slot} is held by {self._holder[slot]}"
        self._holder[slot] = sequence_id
        self._kept[slot] = ()

    def release(self, slot: int, sequence_id: str, tokens: tuple[int, ...] = ()) -> None:
        """Takes it back from the sequence that holds it; ``tokens`` stay in it."""
        assert self._holder[slot] == sequence_id, f"slot {slot} is not {sequence_id}'s"
        self._clock += 1
        self._holder[slot] = None
        self._kept[slot] = tokens
        self._released[slot] = self._clock

    def forget(self, slot: int) -> None:
        """A free slot holds nothing any more."""
        assert self._holder[slot] is None
        self._kept[slot] = ()
