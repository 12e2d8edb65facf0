"""The cache's sequence numbers: which are free, which sequence holds which."""

from __future__ import annotations


class SlotTable:
    """`n` slots, lowest number first."""

    def __init__(self, n: int) -> None:
        self._holder: list[str | None] = [None] * n

    def free(self) -> list[int]:
        """Free slots, ascending."""
        return [slot for slot, holder in enumerate(self._holder) if holder is None]

    def take(self, slot: int, sequence_id: str) -> None:
        """Gives a free slot to a sequence."""
        assert self._holder[slot] is None, f"slot {slot} is held by {self._holder[slot]}"
        self._holder[slot] = sequence_id

    def release(self, slot: int, sequence_id: str) -> None:
        """Takes it back from the sequence that holds it."""
        assert self._holder[slot] == sequence_id, f"slot {slot} is not {sequence_id}'s"
        self._holder[slot] = None
