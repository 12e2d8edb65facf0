"""Which tokens of which sequences go into the next batch. Pure Python over plain data: no model, no clock.

`make_plan` decides and changes nothing; `Scheduler` keeps the queues and applies decisions. A batch mixes one
token of every generating sequence with chunks of prompts, so that a long prompt does not stall the streams.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Literal

from serve.sequence import Sequence
from serve.slots import SlotTable


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a batch and the cache can hold."""

    batch: int
    """Most tokens of one batch."""
    prefill_chunk: int
    """Most prompt tokens of one batch that also carries generating sequences."""
    kv_tokens: int
    """Tokens the cache holds for all sequences together."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive tokens of one sequence."""

    sequence_id: str
    slot: int
    start: int
    """Position of the first token."""
    tokens: tuple[int, ...]
    logits: Literal["none", "last", "all"]


@dataclass(frozen=True, slots=True)
class Plan:
    """One batch. Admissions come first: their sequences hold the named slots from now on."""

    admitted: tuple[tuple[str, int], ...]
    """(sequence id, slot)"""
    chunks: tuple[Chunk, ...]


def make_plan(running: Seq[Sequence], waiting: Iterable[Sequence], free_slots: Seq[int], limits: Limits) -> Plan:
    """The next batch; `running` and `waiting` are in order of arrival.

    Every generating sequence gets its token. What is left of the batch goes to prompts in order of arrival,
    those that run first; a waiting sequence is admitted when a slot is free and its tokens fit the cache
    beside what the others hold. Nobody overtakes the head of the queue.
    """
    chunks: list[Chunk] = []
    admitted: list[tuple[str, int]] = []
    generating = [sequence for sequence in running if sequence.generating]
    for sequence in generating:
        chunks.append(_chunk(sequence, sequence.slot, 1))
    room = limits.batch - len(chunks)
    if generating:
        room = min(room, limits.prefill_chunk)
    for sequence in running:
        if room <= 0:
            break
        if not sequence.generating:
            chunks.append(_chunk(sequence, sequence.slot, room))
            room -= len(chunks[-1].tokens)
    # Each running sequence may need one more cell per step: leave one for everybody.
    held = sum(len(sequence.tokens) + 1 for sequence in running)
    slots = list(free_slots)
    for sequence in waiting:
        if room <= 0 or not slots:
            break
        if (running or admitted) and held + len(sequence.tokens) + 1 > limits.kv_tokens:
            break
        slot = slots.pop(0)
        admitted.append((sequence.id, slot))
        chunks.append(_chunk(sequence, slot, room))
        room -= len(chunks[-1].tokens)
        held += len(sequence.tokens) + 1
    return Plan(tuple(admitted), tuple(chunks))


def _chunk(sequence: Sequence, slot: int | None, room: int) -> Chunk:
    assert slot is not None
    start = sequence.n_computed
    stop = min(start + room, len(sequence.tokens))
    if sequence.scores_prompt and start < sequence.n_prompt:
        logits = "all"
    else:
        logits = "last" if stop == len(sequence.tokens) else "none"
    return Chunk(sequence.id, slot, start, tuple(sequence.tokens[start:stop]), logits)


class Scheduler:
    """Queues of sequences and the slots they hold."""

    def __init__(self, *, slots: int, limits: Limits) -> None:
        self._limits = limits
        self._slots = SlotTable(slots)
        self._running: list[Sequence] = []
        self._waiting: deque[Sequence] = deque()

    @property
    def n_running(self) -> int:
        return len(self._running)

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    def add(self, sequence: Sequence) -> None:
        """Queues a new sequence."""
        self._waiting.append(sequence)

    def plan(self) -> Plan:
        """The next batch; admissions are carried out. No chunks means nothing to do."""
        plan = make_plan(self._running, self._waiting, self._slots.free(), self._limits)
        for sequence_id, slot in plan.admitted:
            sequence = self._waiting.popleft()
            assert sequence.id == sequence_id
            self._slots.take(slot, sequence_id)
            sequence.slot = slot
            self._running.append(sequence)
        return plan

    def commit(self, plan: Plan) -> None:
        """The batch was computed: its tokens are in the cache."""
        computed = {chunk.sequence_id: chunk.start + len(chunk.tokens) for chunk in plan.chunks}
        for sequence in self._running:
            sequence.n_computed = computed.get(sequence.id, sequence.n_computed)

    def preempt(self) -> tuple[Sequence, int] | None:
        """Sends the youngest running sequence back to the head of the queue, to be computed again later.

        Returns it with the slot that it left (whose cells the caller must free), None when only one is running.
        """
        if len(self._running) < 2:
            return None
        victim = self._running.pop()
        slot = victim.slot
        assert slot is not None
        self._slots.release(slot, victim.id)
        victim.slot, victim.n_computed = None, 0
        self._waiting.appendleft(victim)
        return victim, slot

    def remove(self, sequence_id: str) -> int | None:
        """Forgets a sequence; returns the slot that it held (whose cells the caller must free)."""
        for sequence in self._running:
            if sequence.id == sequence_id:
                self._running.remove(sequence)
                slot = sequence.slot
                assert slot is not None
                self._slots.release(slot, sequence_id)
                return slot
        self._waiting = deque(each for each in self._waiting if each.id != sequence_id)
        return None
