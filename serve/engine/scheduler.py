"""Which tokens of which sequences go into the next batch. Pure Python over plain data: no model, no clock.

``make_plan`` decides and changes nothing; ``Scheduler`` keeps the queues and applies decisions. With one cache for all,
a batch mixes one token of every generating sequence with chunks of prompts. With a cache per slot, llama.cpp would
compute such a batch in two passes: a batch is then either the next tokens of all that generate or a piece of a
prompt. Either way a long prompt does not stall the streams for long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Set
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Literal

from serve.engine.kv_slots import SlotTable
from serve.engine.sequence import Sequence


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a batch and the cache can hold."""

    batch: int
    """Most tokens of one batch."""
    prefill_chunk: int
    """Most prompt tokens that are computed between two tokens of the generating sequences."""
    mixed: bool = True
    """Whether one pass takes tokens of generating sequences and pieces of prompts together."""
    kv_tokens: int
    """Tokens the cache holds for all sequences together."""
    prefix_cache: bool = False
    """Whether a slot keeps what its last sequence computed, for the next that begins alike."""
    min_copied: int = 0
    """The fewest tokens of a common beginning for which another slot's cells are copied; 0: never."""
    aligned: int = 0
    """Above 0: prompts are computed in chunks that begin at multiples of it and have so many tokens, the last one
    aside, and only whole chunks are shared. How a prompt is cut then depends on nothing but the prompt."""


MIN_KEPT = 16
"""A shorter common beginning is computed again: it costs next to nothing, and short prompts (which begin alike by
chance) then give the same numbers whatever came before them."""

MIN_COPIED = 64
"""A shorter common beginning is computed again rather than copied from another slot."""

SMALL_PIECE = 64
"""A piece of a prompt below this is not worth a pass of its own, which reads all weights: the streams come first, and
short prompts are computed together."""

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
    n_guesses: int = 0
    """So many of the tokens, the last, are guesses: they belong to the sequence only if its sampler picks them."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One batch. Admissions come first: their sequences hold the named slots from now on."""

    admitted: tuple[tuple[str, int], ...]
    """(sequence id, slot)"""
    chunks: tuple[Chunk, ...]
    kept: tuple[int, ...] = ()
    """Per admission, how many leading tokens are in the slot already; the slot must be cut back to them."""
    sources: tuple[int | None, ...] = ()
    """Per admission, the slot from which those tokens are copied first; None: they are there."""


def make_plan(
    running: Seq[Sequence],
    waiting: Iterable[Sequence],
    free_slots: Seq[int],
    limits: Limits,
    left: Mapping[int, Seq[int]] | None = None,
    guesses: Mapping[str, Seq[int]] | None = None,
    since: int = 0,
) -> Plan:
    """The next batch; ``running`` and ``waiting`` are in order of arrival, ``free_slots`` in order of preference;
    ``left``: the tokens that free slots still hold; ``guesses``: tokens to check, by generating sequence; ``since``:
    prompt tokens computed since the generating sequences got their last tokens.

    Every generating sequence gets its token, and its guesses. What is left of the batch goes to prompts in order of
    arrival, those that run first; a waiting sequence is admitted when a slot is free and its tokens fit the cache
    beside what the others hold. Nobody overtakes the head of the queue, but for one case: a sequence whose beginning
    is being computed for another waits until that can be copied, with a slot and room in the cache kept for it.

    Where batches are not mixed, prompts come first, one after the other, so that each gets its first token early;
    the generating sequences get theirs when the prompts have had their ``prefill_chunk``, or there are none.
    """
    generating = [sequence for sequence in running if sequence.generating]
    tokens = tuple(
        _with_guesses(_chunk(sequence, sequence.slot, 1), (guesses or {}).get(sequence.id, ()))
        for sequence in generating
    )
    if limits.mixed:
        room = limits.batch - sum(len(chunk.tokens) for chunk in tokens)
        if generating:
            room = min(room, limits.prefill_chunk)
        plan = _prompts(running, waiting, free_slots, limits, left or {}, room, enough=limits.batch)
        return replace(plan, chunks=tokens + plan.chunks)
    room = min(limits.batch, limits.prefill_chunk - since) if generating else limits.batch
    if generating and room < min(limits.aligned or SMALL_PIECE, limits.prefill_chunk):
        return Plan((), tokens)
    plan = _prompts(running, waiting, free_slots, limits, left or {}, room, enough=SMALL_PIECE)
    return plan if plan.chunks else replace(plan, chunks=tokens)


def _prompts(
    running: Seq[Sequence],
    waiting: Iterable[Sequence],
    free_slots: Seq[int],
    limits: Limits,
    left: Mapping[int, Seq[int]],
    room: int,
    *,
    enough: int,
) -> Plan:
    """Pieces of prompts, at most ``room`` tokens; none is added to ``enough`` of them."""
    chunks: list[Chunk] = []
    admitted: list[tuple[str, int]] = []
    kept: list[int] = []
    sources: list[int | None] = []
    least = max(limits.aligned, 1, room - enough + 1)
    for sequence in running:
        if room < least:
            break
        if not sequence.generating:
            chunks.append(_chunk(sequence, sequence.slot, limits.aligned or room))
            room -= len(chunks[-1].tokens)
    # Each running sequence may need one more cell per step: leave one for everybody.
    held = sum(len(sequence.tokens) + 1 for sequence in running)
    slots = list(free_slots)
    taken = {sequence.slot for sequence in running}
    computing = list(running)
    reserved = 0
    for sequence in waiting:
        if room < least or len(slots) <= reserved:
            break
        if (running or admitted) and held + len(sequence.tokens) + 1 > limits.kv_tokens:
            break
        held += len(sequence.tokens) + 1
        tokens = _shareable(sequence)
        slot, n_kept, source, n_later = _choose(tokens, slots, left, taken, computing, limits)
        if n_later - n_kept >= limits.min_copied > 0:
            reserved += 1
            continue
        slots.remove(slot)
        taken.add(slot)
        admitted.append((sequence.id, slot))
        kept.append(n_kept)
        sources.append(source)
        chunks.append(_chunk(sequence, slot, limits.aligned or room, start=n_kept))
        computing.append(replace(sequence, slot=slot, n_computed=n_kept))
        room -= len(chunks[-1].tokens)
    return Plan(tuple(admitted), tuple(chunks), tuple(kept), tuple(sources))


def _shareable(sequence: Sequence) -> list[int]:
    """The tokens of a waiting sequence that may come from what others have computed."""
    # A scored prompt needs the logits of every token.
    if not sequence.from_cache or sequence.scores_prompt:
        return []
    # At least one token must be computed, or there are no logits to pick the next from.
    return sequence.tokens[:-1]


def _choose(
    tokens: list[int],
    slots: Seq[int],
    left: Mapping[int, Seq[int]],
    taken: Set[int | None],
    computing: Seq[Sequence],
    limits: Limits,
) -> tuple[int, int, int | None, int]:
    """The slot for a sequence that may share ``tokens``; how many of them it has then; the slot to copy them from, if
    they are not there; and how many could be copied when what is being computed is.

    A common beginning counts by its length, unless it is a small part of what the slot holds: that is another's
    long conversation, and worth more than a few shared words. A slot apart from those in use counts less (see
    ``GAP_COST``). Of equals, the first is taken.
    """
    common = {slot: _whole(_common(tokens, left.get(slot, ())), limits) for slot in slots}

    def gap(slot: int) -> int:
        return GAP_COST * (bool(taken) and slot - 1 not in taken and slot + 1 not in taken)

    def worth(slot: int) -> int:
        n = common[slot] if 4 * common[slot] >= len(left.get(slot, ())) else 0
        return (n if n >= MIN_KEPT else 0) - gap(slot)

    best = max(slots, key=worth)
    n_kept = common[best] if common[best] >= MIN_KEPT else 0
    if not limits.min_copied or not limits.prefix_cache or not tokens:
        return best, n_kept, None, 0
    n_later = n_now = 0
    source: int | None = None
    for other in computing:
        n = _common(tokens, other.tokens[: other.n_prompt] if limits.aligned else other.tokens)
        n_later = max(n_later, _whole(n, limits))
        n = _whole(min(n, other.n_computed), limits)
        if n > n_now:
            n_now, source = n, other.slot
    if n_now - n_kept >= limits.min_copied:
        return max(slots, key=lambda slot: -gap(slot)), n_now, source, n_later
    empty = [slot for slot in slots if not left.get(slot)]
    if empty and n_kept >= limits.min_copied and len(left[best]) - n_kept >= limits.min_copied:
        # What the slot holds beyond it is another's conversation: there is room to leave it as it is.
        return max(empty, key=lambda slot: -gap(slot)), n_kept, best, n_later
    return best, n_kept, None, n_later


def _whole(n: int, limits: Limits) -> int:
    """``n`` tokens, or those of them that are in whole chunks."""
    return n - n % limits.aligned if limits.aligned else n


def _common(a: Seq[int], b: Seq[int]) -> int:
    """How many tokens at the beginning are the same. In halves, because slices are compared at C's speed."""
    low, high = 0, min(len(a), len(b))
    if not high or a[0] != b[0]:
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        if list(a[low:middle]) == list(b[low:middle]):
            low = middle
        else:
            high = middle - 1
    return low


def _chunk(sequence: Sequence, slot: int | None, room: int, start: int | None = None) -> Chunk:
    assert slot is not None
    start = sequence.n_computed if start is None else start
    stop = min(start + room, len(sequence.tokens))
    if sequence.scores_prompt and start < sequence.n_prompt:
        logits = "all"
    else:
        logits = "last" if stop == len(sequence.tokens) else "none"
    return Chunk(sequence.id, slot, start, tuple(sequence.tokens[start:stop]), logits)


def _with_guesses(chunk: Chunk, guesses: Seq[int]) -> Chunk:
    if not guesses:
        return chunk
    return replace(chunk, tokens=(*chunk.tokens, *guesses), logits="all", n_guesses=len(guesses))


def without_guesses(plan: Plan) -> Plan:
    """The same batch with nothing to check."""
    return replace(plan, chunks=tuple(_bare(chunk) for chunk in plan.chunks))


def _bare(chunk: Chunk) -> Chunk:
    if not chunk.n_guesses:
        return chunk
    return replace(chunk, tokens=chunk.tokens[: -chunk.n_guesses], logits="last", n_guesses=0)


class Scheduler:
    """Queues of sequences and the slots they hold."""

    def __init__(self, *, slots: int, limits: Limits) -> None:
        self._limits = limits
        self._slots = SlotTable(slots)
        self._running: list[Sequence] = []
        self._waiting: deque[Sequence] = deque()
        self._since = 0
        """Prompt tokens computed since the generating sequences got their last tokens."""

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

    @property
    def generating(self) -> list[Sequence]:
        """Running sequences of which only the newest token is to compute, in order of arrival."""
        return [sequence for sequence in self._running if sequence.generating]

    def plan(self, guesses: Mapping[str, Seq[int]] | None = None) -> Plan:
        """The next batch; admissions are carried out. No chunks means nothing to do. ``guesses``: see ``make_plan``."""
        free = self._slots.free() if self._waiting else []
        left = {slot: self._slots.kept(slot) for slot in free} if self._waiting else {}
        plan = make_plan(self._running, self._waiting, free, self._limits, left, guesses, self._since)
        by_id = {sequence.id: sequence for sequence in self._waiting} if plan.admitted else {}
        for (sequence_id, slot), n_kept in zip(plan.admitted, plan.kept, strict=True):
            sequence = by_id[sequence_id]
            self._waiting.remove(sequence)
            self._slots.take(slot, sequence_id)
            if not sequence.admitted:
                sequence.n_cached, sequence.admitted = n_kept, True
            sequence.slot, sequence.n_computed = slot, n_kept
            self._running.append(sequence)
        return plan

    def commit(self, plan: Plan) -> None:
        """The batch was computed: its tokens are in the cache. Guesses count as computed when they turn out right,
        which the engine sees to."""
        by_id = {chunk.sequence_id: chunk for chunk in plan.chunks}
        n_prompt, waits = 0, False
        for sequence in self._running:
            chunk = by_id.get(sequence.id)
            if chunk is None:
                waits = waits or sequence.generating
                continue
            if not sequence.generating:
                n_prompt += len(chunk.tokens)
            sequence.n_computed = chunk.start + len(chunk.tokens) - chunk.n_guesses
        self._since = self._since + n_prompt if waits else 0

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
        was computed; without, or when that is not so (``forget``), the caller must free the cells."""
        for sequence in self._running:
            if sequence.id == sequence_id:
                self._running.remove(sequence)
                slot = sequence.slot
                assert slot is not None
                n = sequence.n_computed
                if self._limits.aligned:
                    n = _whole(min(n, sequence.n_prompt), self._limits)
                computed = tuple(sequence.tokens[:n]) if self._limits.prefix_cache else ()
                self._slots.release(slot, sequence_id, computed)
                return slot
        self._waiting = deque(each for each in self._waiting if each.id != sequence_id)
        return None
