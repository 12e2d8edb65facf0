"""Keeps the queues of sequences and the slots they hold, and applies the plans of ``batch_plan.py``. Pure Python over
plain data: no model, no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace

from slm.serve.engine.batch_plan import Limits, Plan, Sequence, common_prefix, make_plan, whole_chunks
from slm.serve.engine.protocol import SlotState

Adapters = tuple[float, ...]
"""By what each adapter is multiplied; (): as the engine's configuration says."""


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


class Scheduler:
    """Queues of sequences and the slots they hold."""

    def __init__(self, *, slots: int, limits: Limits) -> None:
        self._limits = limits
        self._slots = KvSlots(slots)
        self._running: list[Sequence] = []
        self._waiting: deque[Sequence] = deque()
        self._n_added = 0
        self._n_prefilled: dict[Adapters, int] = {}
        """Prompt tokens computed since the last decode step, while sequences with the same adapters generate."""
        self._slot_adapters: list[Adapters] = [()] * slots
        """With which adapters each slot's cells were computed."""
        self._turns: dict[Adapters, int] = {}
        """When sequences with these adapters were last computed, as a count of such steps."""
        self._by_length = True
        """Whether the next prompt tokens are the shortest prompt's. Every other time, so that a long prompt gets half
        of the steps however many short ones come."""

    @property
    def n_running(self) -> int:
        return len(self._running)

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
        """Whether any sequence has tokens to compute."""
        return bool(self._waiting) or any(sequence.n_to_compute > 0 for sequence in self._running)

    @property
    def n_computed(self) -> int:
        """Tokens of running sequences in the cache."""
        return sum(sequence.n_computed for sequence in self._running)

    @property
    def generating(self) -> list[Sequence]:
        """Running sequences after their prompt, in order of arrival."""
        return [sequence for sequence in self._running if sequence.generating]

    def slot_states(self) -> tuple[SlotState, ...]:
        """What each slot does."""
        held = {sequence.slot: sequence for sequence in self._running}
        states = []
        for slot in range(self._slots.n):
            sequence = held.get(slot)
            if sequence is None:
                states.append(SlotState(processing=False, n_held=len(self._slots.cached(slot))))
                continue
            states.append(
                SlotState(
                    processing=True,
                    n_prompt=sequence.n_prompt,
                    n_generated=sequence.n_generated,
                    n_held=sequence.n_computed,
                )
            )
        return tuple(states)

    def cached(self, slot: int) -> tuple[int, ...] | None:
        """The tokens that a free slot holds, computed with no adapters of a request's own; None for one in use. Raises
        ``IndexError`` where there is no such slot."""
        if not 0 <= slot < self._slots.n:
            raise IndexError(slot)
        return self._held(slot, ()) if self._slots.is_free(slot) else None

    def _held(self, slot: int, adapters: Adapters) -> tuple[int, ...]:
        """What a free slot caches for sequences with these adapters."""
        return self._slots.cached(slot) if self._slot_adapters[slot] == adapters else ()

    def next_prompt(self) -> tuple[list[int], int, int] | None:
        """For the next sequence that gets a slot: the tokens that may come from the cache, how many of them some slot
        holds, and the slot that is given up first. None where nothing may, or no slot is free."""
        if not self._waiting or not self._waiting[0].reuses or not (free := self._slots.free()):
            return None
        if self._waiting[0].adapters:
            return None
        tokens = self._waiting[0].tokens[:-1]
        held: list[Seq[int]] = [self._held(slot, ()) for slot in free]
        held += [each.tokens for each in self._running if not each.adapters]
        return tokens, max(common_prefix(tokens, each) for each in held), free[0]

    def put_cached(self, slot: int, tokens: tuple[int, ...]) -> None:
        """The caller has put the cells of these tokens into a free slot."""
        self._slots.put_cached(slot, tokens)
        self._slot_adapters[slot] = ()

    def add(self, sequence: Sequence) -> None:
        """Queues a new sequence."""
        self._n_added += 1
        sequence.number = self._n_added
        self._waiting.append(sequence)

    @property
    def n_prompts(self) -> int:
        """Prompts that wait or are being computed."""
        return len(self._waiting) + sum(
            sequence.n_to_compute > 0 and not sequence.generating for sequence in self._running
        )

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence that runs or is the next to run."""
        waiting = len(self._waiting[0].tokens) if self._waiting else 0
        return max(waiting, max((len(sequence.tokens) for sequence in self._running), default=0))

    def limit_prefill(self, *, streams: int, short: int, alone: int, slot_tokens: int) -> None:
        """Sets the most prompt tokens of a step from now on (while sequences generate, of long prompts and of ``short``
        ones, and while none does), and the tokens of a slot."""
        self._limits = replace(
            self._limits, prefill_chunk=streams, short_chunk=short, alone_chunk=alone, slot_tokens=slot_tokens
        )

    def plan(
        self,
        drafts: Mapping[str, Seq[int]] | None = None,
        kept: Callable[[Seq[int]], Mapping[int, Seq[int]]] = lambda slots: {},
    ) -> Plan:
        """The next batch; its admissions are carried out. No chunks means that there is nothing to do. ``drafts`` and
        what ``kept`` gives for free slots: see ``make_plan``."""
        for sequence in self._running:
            # Only now are those added that came while its first token was computed.
            if sequence.n_before < 0 and sequence.generating:
                sequence.n_before = self._n_added
        free = self._slots.free() if self._waiting else []
        kept_states = kept(free)
        plan = Plan((), ())
        for adapters in self._in_turn():
            plan = self._plan_for(adapters, free, drafts, kept_states)
            if plan.chunks:
                self._turns[adapters] = 1 + max(self._turns.values(), default=0)
                break
        if plan.admitted:
            plan = replace(plan, displaced=tuple(self._held(slot, ()) for _, slot in plan.admitted))
        by_id = {sequence.id: sequence for sequence in self._waiting} if plan.admitted else {}
        for (sequence_id, slot), n_cached, stops in zip(plan.admitted, plan.n_cached, plan.stops, strict=True):
            sequence = by_id[sequence_id]
            sequence.stops = stops
            self._waiting.remove(sequence)
            self._slots.take(slot, sequence_id)
            self._slot_adapters[slot] = plan.adapters
            if not sequence.admitted:
                sequence.n_cached, sequence.admitted = n_cached, True
            sequence.slot, sequence.n_computed = slot, n_cached
            self._running.append(sequence)
        return plan

    def _in_turn(self) -> list[Adapters]:
        """The adapters of all sequences, each once, the longest not computed first: llama.cpp computes a batch with the
        same adapters."""
        found = dict.fromkeys(each.adapters for queue in (self._running, self._waiting) for each in queue)
        if len(found) > 1:
            self._turns = {each: self._turns.get(each, 0) for each in found}
            return sorted(found, key=self._turns.__getitem__)
        self._turns = {}
        return list(found)

    def _plan_for(
        self,
        adapters: Adapters,
        free: Seq[int],
        drafts: Mapping[str, Seq[int]] | None,
        kept: Mapping[int, Seq[int]],
    ) -> Plan:
        """The next batch of the sequences with these adapters."""
        running = [each for each in self._running if each.adapters == adapters]
        waiting = [each for each in self._waiting if each.adapters == adapters]
        # What the others hold in one cache for all is not there for these.
        taken = sum(len(each.tokens) + 1 for each in self._running if each.adapters != adapters)
        limits = self._limits if not taken else replace(self._limits, kv_tokens=self._limits.kv_tokens - taken)
        if taken and not running and waiting and len(waiting[0].tokens) + 1 > limits.kv_tokens:
            return Plan((), ())
        cached = {slot: self._held(slot, adapters) for slot in free}
        n_prefilled = self._n_prefilled.get(adapters, 0)
        plan = make_plan(running, waiting, free, limits, cached, drafts, n_prefilled, kept, self._by_length)
        return replace(plan, adapters=adapters) if adapters else plan

    def commit(self, plan: Plan) -> int:
        """The batch was computed: its tokens are in the cache. Draft tokens are not counted here; the engine counts
        those that are accepted. Returns how many of the tokens were prompts'."""
        by_id = {chunk.sequence_id: chunk for chunk in plan.chunks}
        n_prompt, someone_waits = 0, False
        for sequence in self._running:
            chunk = by_id.get(sequence.id)
            if chunk is None:
                someone_waits = someone_waits or (sequence.generating and sequence.adapters == plan.adapters)
                continue
            if not sequence.generating:
                n_prompt += len(chunk.tokens)
            sequence.n_computed = chunk.start + len(chunk.tokens) - chunk.n_drafted
        before = self._n_prefilled.pop(plan.adapters, 0)
        if someone_waits:
            self._n_prefilled[plan.adapters] = before + n_prompt
        self._by_length ^= n_prompt > 0
        return n_prompt

    def preempt(self) -> tuple[Sequence, int] | None:
        """Sends the youngest running sequence back to the head of the queue, to be computed again later.

        Returns it and the slot that it held (whose cells the caller must free), or None when only one is running.
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
        """Drops what the longest unused free slot caches. Returns the slot (whose cells the caller must free), or None
        when no free slot caches anything."""
        for slot in self._slots.free():
            if self._slots.cached(slot):
                self._slots.drop_cached(slot)
                return slot
        return None

    def drop_cached(self, slot: int) -> None:
        """The caller has freed the cells of a free slot."""
        self._slots.drop_cached(slot)

    def remove(self, sequence_id: str) -> int | None:
        """Removes a sequence; returns the slot that it held.

        With a prefix cache, the slot counts as caching what was computed. Without one, or where the caller knows that
        it does not (``drop_cached``), the caller must free the cells.
        """
        for sequence in self._running:
            if sequence.id == sequence_id:
                self._running.remove(sequence)
                slot = sequence.slot
                assert slot is not None
                n = sequence.n_computed
                if self._limits.fixed_chunk:
                    n = whole_chunks(min(n, sequence.n_prompt), self._limits)
                computed = tuple(sequence.tokens[:n]) if self._limits.prefix_cache else ()
                self._slots.release(slot, sequence_id, computed)
                return slot
        self._waiting = deque(each for each in self._waiting if each.id != sequence_id)
        return None
