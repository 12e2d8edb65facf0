"""Decides which tokens of which sequences go into the next batch. Pure Python over plain data: no model, no clock.

There is one rule. A sequence has tokens, and a number of them that are computed; steps compute the next ones until none
is left, and then a token is sampled. A prompt, a sampled token, tokens that a grammar forces, draft tokens, what is
computed again after a preemption or a shift of the context: all of these are tokens that are not computed yet.

How many of them a step takes is bounded. A sequence that generates gets all of its few ones, prompts get what streams
can wait for (``_most_between``). With one cache for all sequences, a batch has both. With a cache per slot, llama.cpp
would compute such a batch in two passes; a batch is then either a decode step of all that generate or chunks of
prompts.

Tested in tests/serve/engine/test_scheduler.py, tests/serve/engine/test_shared_prefix.py.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Set
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Literal


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """Plain data; only the scheduler and the engine change it."""

    id: str
    tokens: list[int]
    """The prompt and what has been generated so far."""
    n_prompt: int
    n_dropped: int = 0
    """Its oldest tokens that are no longer in ``tokens``, because the context was full."""
    n_forced: int = 0
    """Its newest tokens that were not sampled, behind the one that was sampled last."""
    n_computed: int = 0
    """Leading tokens that are in the KV cache."""
    slot: int | None = None
    """Its sequence number in the KV cache while it runs; None while it waits."""
    admitted: bool = False
    """Whether it has ever had a slot."""
    n_cached: int = 0
    """Leading prompt tokens that were a prefix-cache hit when it first got a slot."""
    use_prefix_cache: bool = True
    """Whether it may begin with what another sequence computed."""
    stops: tuple[int, ...] = ()
    """Numbers of prompt tokens after which the slot's state is kept: a chunk ends there."""
    wanted_slot: int | None = None
    """The one that it gets where it is free."""
    adapters: tuple[float, ...] = ()
    """By what each adapter is multiplied. Sequences of one batch have the same, and a prefix belongs to them."""
    scores_prompt: bool = False
    """Whether logits of every prompt token are wanted (echo with logprobs)."""
    number: int = 0
    """The order of arrival, from 1 on."""
    n_before: int = -1
    """Sequences that had arrived when it began to generate."""

    @property
    def reuses(self) -> bool:
        """Whether its prompt's beginning may come from the cache. A scored prompt needs the logits of every token."""
        return self.use_prefix_cache and not self.scores_prompt

    @property
    def n_to_compute(self) -> int:
        """Tokens still to compute before the next one can be sampled."""
        return len(self.tokens) - self.n_computed

    @property
    def n_generated(self) -> int:
        """Tokens behind the prompt so far."""
        return len(self.tokens) + self.n_dropped - self.n_prompt

    @property
    def generating(self) -> bool:
        """Whether its prompt is computed, so that only its newest token remains to compute, and what was forced behind
        it."""
        return 1 <= self.n_to_compute <= 1 + self.n_forced and self.n_computed + self.n_dropped >= self.n_prompt


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a batch and the cache can hold."""

    batch: int
    """Most tokens of one batch."""
    prefill_chunk: int
    """Most tokens of long prompts that are computed between two decode steps."""
    short_chunk: int = 0
    """Most tokens of short prompts, where it is above ``prefill_chunk``. Those are short that two such chunks hold."""
    alone_chunk: int = 1 << 30
    """Most prompt tokens of a step while no sequence generates, and between two decode steps of sequences that began
    while the prompts waited."""
    mixed: bool = True
    """Whether one pass takes tokens of generating sequences and prefill chunks together."""
    kv_tokens: int
    """Tokens that the cache holds for all sequences together."""
    prefix_cache: bool = False
    """Whether a slot keeps what its last sequence computed, for another with the same prefix."""
    min_copied: int = 0
    """The fewest tokens of a common prefix for which another slot's cells are copied; 0: never."""
    kept_before_end: int = 0
    """Above 0: slots cannot be cut back everywhere, and the state is kept this many tokens before a prompt's end, and
    where it departs from what another slot holds."""
    tile: int = 1
    """A prompt's last chunk should have this many tokens at least, where it has others before it."""
    slot_tokens: int = 1 << 30
    """Tokens that a slot holds now. Prompts go on behind them when slots have grown."""
    fixed_chunk: int = 0
    """Above 0: every prefill chunk begins at a multiple of it and has this many tokens, except a prompt's last one, and
    only whole chunks are reused. How a prompt is cut then depends on nothing but the prompt (batch-invariant)."""


MIN_CACHED = 16
"""A shorter common prefix is computed again. This costs next to nothing, and short prompts (which share a few tokens
by chance) then give the same numbers whatever came before them."""

MIN_COPIED = 64
"""A shorter common prefix is computed again rather than copied from another slot."""

SMALL_CHUNK = 64
"""A prefill chunk below this is not worth a separate pass, which reads all weights: decode steps come first, and
short prompts are computed together."""

GAP_COST = 64
"""Penalty, in prompt tokens, for using a slot outside the contiguous range. With a cache per slot, llama.cpp batches
only sequences in neighbouring slots and computes the others one by one in every step."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive tokens of one sequence."""

    sequence_id: str
    slot: int
    start: int
    """Position of the first token."""
    tokens: tuple[int, ...]
    logits: Literal["none", "last", "all"]
    n_drafted: int = 0
    """So many of the tokens, the last ones, are draft tokens: they become the sequence's if its sampler picks them."""
    keeps_state: bool = False
    """Whether the slot's state after it is to be kept."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One batch. Admissions come first: their sequences hold the named slots from now on."""

    admitted: tuple[tuple[str, int], ...]
    """(sequence id, slot)"""
    chunks: tuple[Chunk, ...]
    n_cached: tuple[int, ...] = ()
    """Per admission, how many leading tokens are cached; the slot must be cut back to them."""
    copied_from: tuple[int | None, ...] = ()
    """Per admission, the slot from which those tokens are copied first; None: they are in the slot already."""
    stops: tuple[tuple[int, ...], ...] = ()
    """Per admission, the sequence's ``stops``."""
    displaced: tuple[tuple[int, ...], ...] = ()
    """Per admission, the tokens that the slot held."""
    adapters: tuple[float, ...] = ()
    """Those of all its sequences."""


def make_plan(
    running: Seq[Sequence],
    waiting: Iterable[Sequence],
    free_slots: Seq[int],
    limits: Limits,
    cached: Mapping[int, Seq[int]] | None = None,
    drafts: Mapping[str, Seq[int]] | None = None,
    n_prefilled: int = 0,
    kept: Mapping[int, Seq[int]] | None = None,
    shortest_first: bool = False,
) -> Plan:
    """The next batch.

    ``running`` and ``waiting`` are in order of arrival, ``free_slots`` in order of preference. ``cached``: the tokens
    that free slots still hold. ``drafts``: draft tokens to verify, by generating sequence. ``n_prefilled``: prompt
    tokens computed since the last decode step, while sequences generate. ``kept``: of slots that cannot be cut back
    everywhere, the numbers of tokens after which their state is kept.

    Every generating sequence gets its newest token, those that a grammar forced behind it, and its draft tokens. The
    rest of the batch goes to prompts in order of arrival, those that run first; with ``shortest_first`` to the one with
    the fewest tokens left, so that a short prompt does not wait for all of a long one. A waiting sequence is admitted
    when a slot is free and its tokens fit into the cache next to what the others hold. Nobody overtakes the head of the
    queue, with one exception: a sequence with a pending prefix-cache hit (its prefix is being computed for another)
    waits until that can be copied. A slot and room in the cache are reserved for it.

    Where batches are not mixed, prompts come first, one after the other, so that each gets its first token early. The
    next decode step comes when the prompts have had their ``prefill_chunk``, or when there are none.
    """
    generating = [sequence for sequence in running if sequence.generating]
    decode = tuple(
        _with_drafts(_chunk(sequence, sequence.slot, sequence.n_to_compute), (drafts or {}).get(sequence.id, ()))
        for sequence in generating
    )
    plan = _plan_prefill(
        _prefilling(running, shortest_first),
        running,
        waiting,
        free_slots,
        limits,
        cached or {},
        kept or {},
        n_before=min(sequence.n_before for sequence in generating) if generating else None,
        n_prefilled=0 if limits.mixed or not generating else n_prefilled,
        n_batch=limits.batch - (sum(len(chunk.tokens) for chunk in decode) if limits.mixed else 0),
    )
    if limits.mixed:
        return replace(plan, chunks=decode + plan.chunks)
    return plan if plan.chunks else replace(plan, chunks=decode)


def _most_between(sequence: Sequence, n_cached: int, n_before: int | None, limits: Limits) -> int:
    """Most prompt tokens that are computed between two decode steps, when the next ones are this sequence's.

    ``n_cached``: those of its tokens that came from the cache. ``n_before``: the least of the sequences that generate;
    None where none does.

    A stream that began while a prompt waited came in the same moment as that, and was only lucky to be the first. It
    waits until the prompts of that moment are computed, as llama-server's streams do, but for no more than an
    ``alone_chunk`` at once. Other streams are held up by a short prompt for a moment, and never long by a long one.
    """
    if n_before is None:
        return limits.alone_chunk
    n = len(sequence.tokens) - n_cached
    if sequence.number <= n_before and n <= limits.alone_chunk:
        return max(limits.alone_chunk, limits.prefill_chunk)
    return max(limits.short_chunk, limits.prefill_chunk) if n <= 2 * limits.short_chunk else limits.prefill_chunk


def _prefilling(running: Seq[Sequence], shortest_first: bool) -> list[tuple[float, Sequence]]:
    """Running sequences with a prompt to compute, and how long a waiting prompt may be that goes before each."""
    found = [each for each in running if each.n_to_compute > 0 and not each.generating]
    if not shortest_first:
        return [(-1, each) for each in found]
    return sorted(((each.n_to_compute - 1, each) for each in found), key=lambda pair: pair[0])


def _plan_prefill(
    prefilling: Seq[tuple[float, Sequence]],
    running: Seq[Sequence],
    waiting: Iterable[Sequence],
    free_slots: Seq[int],
    limits: Limits,
    cached: Mapping[int, Seq[int]],
    kept: Mapping[int, Seq[int]],
    *,
    n_before: int | None,
    n_prefilled: int,
    n_batch: int,
) -> Plan:
    """Prefill chunks of ``n_batch`` tokens at most. ``prefilling``: the running ones in their order (``_prefilling``);
    ``n_before``: see ``_most_between``; ``n_prefilled``: prompt tokens since the last decode step."""
    chunks: list[Chunk] = []
    admitted: list[tuple[str, int]] = []
    n_cached: list[int] = []
    copied_from: list[int | None] = []
    stops: list[tuple[int, ...]] = []
    left = deque(prefilling)
    n_planned = 0
    # A separate pass has to be worth it. Once it is, prompts come one after the other, each early.
    enough = limits.batch if limits.mixed else SMALL_CHUNK

    def most_of(sequence: Sequence, start: int, n_hit: int) -> int:
        """Tokens of a sequence's next chunk; 0 where others come first."""
        most = _most_between(sequence, n_hit, n_before, limits)
        room = min(most - n_prefilled - n_planned, n_batch - n_planned)
        least = limits.fixed_chunk or 1
        if not limits.mixed and n_before is not None and not n_planned:
            least = min(limits.fixed_chunk or SMALL_CHUNK, most, limits.batch)
        return _most(sequence, start, room, n_batch - n_planned, limits, most) if room >= least else 0

    def go_on(before: float) -> None:
        """Chunks of running sequences that come before a waiting prompt of ``before`` tokens."""
        nonlocal n_planned
        while left and left[0][0] < before and n_planned < enough:
            sequence = left.popleft()[1]
            if most := most_of(sequence, sequence.n_computed, sequence.n_cached):
                chunks.append(_chunk(sequence, sequence.slot, most))
                n_planned += len(chunks[-1].tokens)

    # Each running sequence may need one more cell per step: leave one for everybody.
    n_held = sum(len(sequence.tokens) + 1 for sequence in running)
    slots = list(free_slots)
    taken = {sequence.slot for sequence in running}
    computing = list(running)
    n_reserved = 0
    for sequence in waiting:
        go_on(len(sequence.tokens))
        if n_planned >= enough or len(slots) <= n_reserved:
            break
        if (running or admitted) and n_held + len(sequence.tokens) + 1 > limits.kv_tokens:
            break
        n_held += len(sequence.tokens) + 1
        wanted = [slot for slot in slots if slot == sequence.wanted_slot] or slots
        choice = _choose_slot(_reusable(sequence), wanted, cached, kept, taken, computing, limits)
        if choice.n_pending - choice.n_cached >= limits.min_copied > 0:
            n_reserved += 1
            continue
        most = most_of(sequence, choice.n_cached, choice.n_cached)
        if not most:
            break
        slots.remove(choice.slot)
        taken.add(choice.slot)
        admitted.append((sequence.id, choice.slot))
        n_cached.append(choice.n_cached)
        copied_from.append(choice.copied_from)
        stops.append(_stops(sequence, choice, limits))
        sequence = replace(sequence, stops=stops[-1])
        chunks.append(_chunk(sequence, choice.slot, most, start=choice.n_cached))
        computing.append(replace(sequence, slot=choice.slot, n_computed=choice.n_cached))
        n_planned += len(chunks[-1].tokens)
    go_on(math.inf)
    return Plan(tuple(admitted), tuple(chunks), tuple(n_cached), tuple(copied_from), tuple(stops))


def _most(sequence: Sequence, start: int, room: int, n_batch: int, limits: Limits, between: int) -> int:
    """Tokens of a sequence's next chunk, at most; 0 where it has to wait until slots have grown. ``room``: tokens that
    the step should have; ``n_batch``: that it can have; ``between``: between two decode steps (``_most_between``)."""
    left, n_slot = len(sequence.tokens) - start, limits.slot_tokens - start
    if limits.fixed_chunk:
        return limits.fixed_chunk if min(limits.fixed_chunk, left) <= n_slot else 0
    most = max(min(room, n_slot), 0)
    # Where streams cannot wait for a tile, rows go by themselves anyway.
    if between >= limits.tile and most < left < most + limits.tile:
        # Rather a longer step now than a rest below a tile, which would take longer still.
        if left <= min(n_batch, n_slot):
            return left
        return max(left - limits.tile, min(most, limits.tile))
    return most


def _stops(sequence: Sequence, choice: _SlotChoice, limits: Limits) -> tuple[int, ...]:
    """Where the state of a sequence that is admitted will be kept: where others may go on from it."""
    if not limits.kept_before_end or not sequence.use_prefix_cache:
        return ()
    # Who departs from another there is seldom the last: a system message often ends there.
    wanted = {choice.n_common, sequence.n_prompt - limits.kept_before_end}
    return tuple(sorted(n for n in wanted if n >= choice.n_cached + MIN_CACHED))


def _reusable(sequence: Sequence) -> list[int]:
    """The tokens of a waiting sequence that may come from what others have computed."""
    # At least one token must be computed, or there are no logits to sample the next from.
    return sequence.tokens[:-1] if sequence.reuses else []


@dataclass(frozen=True, slots=True)
class _SlotChoice:
    """A slot for a sequence that is admitted, and its prefix-cache hit there."""

    slot: int
    n_cached: int
    """Tokens of the hit."""
    copied_from: int | None = None
    """The slot that has those tokens, if it is another."""
    n_pending: int = 0
    """Tokens of the pending hit: what could be copied once the others' prompts are computed."""
    n_common: int = 0
    """Tokens of the longest prefix shared with any slot, usable or not."""


def _choose_slot(
    tokens: list[int],
    slots: Seq[int],
    cached: Mapping[int, Seq[int]],
    kept: Mapping[int, Seq[int]],
    taken: Set[int | None],
    computing: Seq[Sequence],
    limits: Limits,
) -> _SlotChoice:
    """The slot for a sequence that may reuse ``tokens``.

    A common prefix counts by its length, unless it is a small part of what the slot caches: that is another's long
    conversation, and worth more than a few shared words. A slot apart from those in use counts less (see
    ``GAP_COST``). The first of equal slots is taken.
    """
    shared = {slot: common_prefix(tokens, cached.get(slot, ())) for slot in slots}
    common = {
        slot: kept_prefix(n, len(cached.get(slot, ())), kept[slot]) if slot in kept else whole_chunks(n, limits)
        for slot, n in shared.items()
    }

    def gap(slot: int) -> int:
        return GAP_COST * (bool(taken) and slot - 1 not in taken and slot + 1 not in taken)

    def worth(slot: int) -> int:
        n = common[slot] if 4 * common[slot] >= len(cached.get(slot, ())) else 0
        return (n if n >= MIN_CACHED else 0) - gap(slot)

    best = max(slots, key=worth)
    n_cached = common[best] if common[best] >= MIN_CACHED else 0
    if not limits.min_copied or not limits.prefix_cache or not tokens:
        n_common = max(shared.values())
        if limits.kept_before_end:
            n_common = max([n_common, *(common_prefix(tokens, each.tokens) for each in computing)])
        return _SlotChoice(best, n_cached, n_common=n_common)
    n_pending = n_now = 0
    source: int | None = None
    for other in computing:
        n = common_prefix(tokens, other.tokens[: other.n_prompt] if limits.fixed_chunk else other.tokens)
        n_pending = max(n_pending, whole_chunks(n, limits))
        n = whole_chunks(min(n, other.n_computed), limits)
        if n > n_now:
            n_now, source = n, other.slot
    if n_now - n_cached >= limits.min_copied:
        return _SlotChoice(max(slots, key=lambda slot: -gap(slot)), n_now, source, n_pending)
    empty = [slot for slot in slots if not cached.get(slot)]
    if empty and n_cached >= limits.min_copied and len(cached[best]) - n_cached >= limits.min_copied:
        # What the slot caches beyond the prefix is another's conversation. With an empty slot free, it can stay.
        return _SlotChoice(max(empty, key=lambda slot: -gap(slot)), n_cached, best, n_pending)
    return _SlotChoice(best, n_cached, None, n_pending)


def kept_prefix(n_common: int, n_held: int, kept: Seq[int]) -> int:
    """The tokens, at most ``n_common``, to which a slot can go back that holds ``n_held`` and has states after
    ``kept``."""
    return n_held if n_common == n_held else max((n for n in kept if n <= n_common), default=0)


def whole_chunks(n: int, limits: Limits) -> int:
    """``n`` tokens; with fixed chunks, those of them that are in whole chunks."""
    return n - n % limits.fixed_chunk if limits.fixed_chunk else n


def common_prefix(a: Seq[int], b: Seq[int]) -> int:
    """Length of the common prefix. A binary search, because slices are compared at C's speed."""
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
    stop = min(start + room, len(sequence.tokens), *(n for n in sequence.stops if n > start))
    logits: Literal["none", "last", "all"]
    if sequence.scores_prompt and start < sequence.n_prompt:
        logits = "all"
    else:
        logits = "last" if stop == len(sequence.tokens) else "none"
    keeps_state = stop in sequence.stops
    return Chunk(sequence.id, slot, start, tuple(sequence.tokens[start:stop]), logits, keeps_state=keeps_state)


def _with_drafts(chunk: Chunk, drafts: Seq[int]) -> Chunk:
    if not drafts:
        return chunk
    return replace(chunk, tokens=(*chunk.tokens, *drafts), logits="all", n_drafted=len(drafts))


def without_drafts(plan: Plan) -> Plan:
    """The same batch with nothing to verify."""
    return replace(plan, chunks=tuple(_without_drafts(chunk) for chunk in plan.chunks))


def _without_drafts(chunk: Chunk) -> Chunk:
    if not chunk.n_drafted:
        return chunk
    return replace(chunk, tokens=chunk.tokens[: -chunk.n_drafted], logits="last", n_drafted=0)
