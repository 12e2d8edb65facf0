"""Which tokens of which sequences go into the next batch. Pure Python over plain data: no model, no clock.

`make_plan` decides and changes nothing; `Scheduler` keeps the queues and applies decisions. A batch mixes one
token of every generating sequence with chunks of prompts, so that a long prompt does not stall the streams.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Set
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
    prefix_cache: bool = False
    """Whether a slot keeps what its last sequence computed, for the next that begins alike."""


MIN_KEPT = 16
"""A shorter common beginning is computed again: it costs next to nothing, and short prompts (which begin alike by
chance) then give the same numbers whatever came before them."""

GAP_COST = 64
"""What a slot away from those in use costs, in tokens of prompt: with a cache per slot, llama.cpp computes together
only sequences whose slots follow each other, and the others one after the other in every step."""


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
    kept: tuple[int, ...] = ()
    """Per admission, how many leading tokens are in the slot already; the slot must be cut back to them."""


def make_plan(
    running: Seq[Sequence],
    waiting: Iterable[Sequence],
    free_slots: Seq[int],
    limits: Limits,
    left: Mapping[int, Seq[int]] | None = None,
) -> Plan:
    """The next batch; `running` and `waiting` are in order of arrival, `free_slots` in order of preference;
    `left`: the tokens that free slots still hold.

    Every generating sequence gets its token. What is left of the batch goes to prompts in order of arrival,
    those that run first; a waiting sequence is admitted when a slot is free and its tokens fit the cache
    beside what the others hold. Nobody overtakes the head of the queue.
    """
    chunks: list[Chunk] = []
    admitted: list[tuple[str, int]] = []
    kept: list[int] = []
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
    taken = {sequence.slot for sequence in running}
    for sequence in waiting:
        if room <= 0 or not slots:
            break
        if (running or admitted) and held + len(sequence.tokens) + 1 > limits.kv_tokens:
            break
        slot, n_kept = _choose(sequence, slots, left or {}, taken)
        slots.remove(slot)
        taken.add(slot)
        admitted.append((sequence.id, slot))
        kept.append(n_kept)
        chunks.append(_chunk(sequence, slot, room, start=n_kept))
        room -= len(chunks[-1].tokens)
        held += len(sequence.tokens) + 1
    return Plan(tuple(admitted), tuple(chunks), tuple(kept))


def _choose(sequence: Sequence, slots: Seq[int], left: Mapping[int, Seq[int]], taken: Set[int]) -> tuple[int, int]:
    """The slot for a sequence, and how many of its tokens are there already.

    A common beginning counts by its length, unless it is a small part of what the slot holds: that is another's
    long conversation, and worth more than a few shared words. A slot apart from those in use counts less (see
    `GAP_COST`). Of equals, the first is taken.
    """
    # A scored prompt needs the logits of every token.
    usable = sequence.from_cache and not sequence.scores_prompt
    # At least one token must be computed, or there are no logits to pick the next from.
    tokens = sequence.tokens[:-1] if usable else []
    common = {slot: _common(tokens, left.get(slot, ())) for slot in slots}

    def worth(slot: int) -> int:
        n = common[slot] if 4 * common[slot] >= len(left.get(slot, ())) else 0
        gap = bool(taken) and slot - 1 not in taken and slot + 1 not in taken
        return (n if n >= MIN_KEPT else 0) - GAP_COST * gap

    best = max(slots, key=worth)
    return best, common[best] if common[best] >= MIN_KEPT else 0


def _common(a: Seq[int], b: Seq[int]) -> int:
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n


def _chunk(sequence: Sequence, slot: int | None, room: int, start: int | None = None) -> Chunk:
    assert slot is not None
    start = sequence.n_computed if start is None else start
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

    @property
    def n_computed(self) -> int:
        """Tokens of running sequences in the cache."""
        return sum(sequence.n_computed for sequence in self._running)

    def add(self, sequence: Sequence) -> None:
        """Queues a new sequence."""
        self._waiting.append(sequence)

    def plan(self) -> Plan:
        """The next batch; admissions are carried out. No chunks means nothing to do."""
        free = self._slots.free()
        left = {slot: self._slots.kept(slot) for slot in free} if self._waiting else {}
        plan = make_plan(self._running, self._waiting, free, self._limits, left)
        for (sequence_id, slot), n_kept in zip(plan.admitted, plan.kept, strict=True):
            sequence = self._waiting.popleft()
            assert sequence.id == sequence_id
            self._slots.take(slot, sequence_id)
            if not sequence.admitted:
                sequence.n_cached, sequence.admitted = n_kept, True
            sequence.slot, sequence.n_computed = slot, n_kept
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

    def evict(self) -> int | None:
        """Gives up what the longest unused free slot still holds; returns the slot (whose cells the caller must
        free), None when no free slot holds anything."""
        for slot in self._slots.free():
            if self._slots.kept(slot):
                self._slots.forget(slot)
                return slot
        return None

    def forget(self, slot: int) -> None:
        """The caller has freed the cells of a free slot."""
        self._slots.forget(slot)

    def remove(self, sequence_id: str) -> int | None:
        """Forgets a sequence; returns the slot that it held. With a prefix cache, the slot counts as holding what
        was computed; without, or when that is not so (`forget`), the caller must free the cells."""
        for sequence in self._running:
            if sequence.id == sequence_id:
                self._running.remove(sequence)
                slot = sequence.slot
                assert slot is not None
                computed = tuple(sequence.tokens[: sequence.n_computed]) if self._limits.prefix_cache else ()
                self._slots.release(slot, sequence_id, computed)
                return slot
        self._waiting = deque(each for each in self._waiting if each.id != sequence_id)
        return None
