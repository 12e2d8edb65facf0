"""The decode loop, one step at a time: plan a batch, run it, sample, make text. Knows nothing of processes or HTTP."""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from slm.data.storage import cache_home
from slm.llama.errors import GrammarDeadEndError, KvCacheFull, LlamaError
from slm.machine.memory import available_bytes
from slm.serve.engine import generation
from slm.serve.engine.batch_plan import Chunk, Limits, Plan, without_drafts
from slm.serve.engine.config import EngineConfig
from slm.serve.engine.embedder import Embedder
from slm.serve.engine.generation import Generation
from slm.serve.engine.model_runner import ModelRunner, SlotTooShortError
from slm.serve.engine.prefill_pace import FLASH_TILE, PrefillPace
from slm.serve.engine.protocol import (
    Cancel,
    Canceled,
    Command,
    Delta,
    Detokenize,
    Embed,
    Event,
    Failure,
    FailureCode,
    FinishReason,
    Generate,
    ListSlots,
    ModelInfo,
    Reply,
    Shutdown,
    SlotAction,
    SlotMoved,
    Stats,
    Tokenize,
)
from slm.serve.engine.scheduler import Scheduler
from slm.serve.engine.spec_decode.proposer import make_proposer
from slm.serve.engine.states.displaced import DisplacedPrompts
from slm.serve.engine.states.prompt_files import PromptFiles
from slm.serve.engine.states.slot_files import cache_mark, read_slot, write_slot
from slm.serve.engine.tokenize import Vocabulary, log_probabilities, tokenize_within
from slm.serve.grammar.constraints import Constraint, Constraints

_KEPT_BEFORE_END = 4
"""Tokens. A template may end a prompt in some that are not in the next turn's, and the same prompt may come again."""
MOST_FORCED = 32
"""Most tokens that a grammar forces and that are computed together."""
LEAST_FORCED = 4
"""Fewer are not worth a separate pass: the mask lets nothing else through, so they come one by one."""
_LEFT_FREE = 1 << 30
"""Bytes of memory that prompts without a slot leave to others."""
_PATIENCE_S = 0.002
"""How long a step waits for masks, all together, before it goes on with other sequences."""


def _has_room(n_bytes: int) -> bool:
    """Whether the machine has memory for these bytes, and for others."""
    return available_bytes() > _LEFT_FREE + 2 * n_bytes  # a copy of it exists for a moment


def _blame(error: LlamaError) -> FailureCode:
    return "invalid_request" if isinstance(error, GrammarDeadEndError) else "engine_error"


class Engine:
    """Takes commands, and gives events step by step. One request's failure never touches another's."""

    def __init__(self, config: EngineConfig) -> None:
        self._runner = ModelRunner(config)
        self._prefix_cache = config.prefix_cache and self._runner.keeps_prefixes
        self._model = self._runner.model
        self._cache_mark = cache_mark(config)
        self.info: ModelInfo = self._runner.info
        tile = 1 if config.flash_attn is False else FLASH_TILE
        self._scheduler = Scheduler(
            slots=config.slots,
            limits=Limits(
                batch=self._runner.batch_limit,
                prefill_chunk=config.prefill_chunk,
                mixed=self._runner.mixes,
                kv_tokens=self.info.kv_tokens,
                prefix_cache=self._prefix_cache,
                min_copied=self._runner.min_copied,
                tile=tile,
                kept_before_end=_KEPT_BEFORE_END if self._prefix_cache and self._runner.keeps_states else 0,
                fixed_chunk=min(config.prefill_chunk, config.ubatch, self._runner.batch_limit) if config.exact else 0,
            ),
        )
        self._embedder = Embedder(
            self._model,
            context=self.info.context,
            threads=lambda: self._runner.threads,
            adapter=self._runner.adapter,
        )
        self._vocabulary = Vocabulary(self._model)
        self._constraints = Constraints(self._model)
        self._most_forced = min(MOST_FORCED, self._runner.batch_limit // config.slots - 1)
        self._proposer = make_proposer(config, self._runner)
        # In one cache for all, slots lose nothing to each other while there is room.
        keeps = self._prefix_cache and not self._runner.mixes
        self._files: PromptFiles | None = None
        if keeps and config.cache_disk:
            self._files = PromptFiles(cache_home() / "prompts", self._cache_mark, config.cache_disk * 2**20)
        self._displaced = DisplacedPrompts(config.cache_ram * 2**20 if keeps else 0, _has_room, self._files)
        self._generations: dict[str, Generation] = {}
        self._batch_invariant, self._shifts = config.exact, config.context_shift
        self._most_prefilled = config.prefill_chunk
        self._pace = PrefillPace(text_s=config.stream_ms / 1000, tile=tile)
        self._next_deadline = math.inf
        self.n_preempted = self.n_steps = self.n_in_steps = 0
        self._step_began: float | None = None

    def warm(self) -> None:
        """Begins what a first request would wait for, in another thread: call it once the engine is ready."""
        if self._runner.generates:
            self._constraints.warm()

    @property
    def busy(self) -> bool:
        """Whether ``step`` has something to do."""
        return bool(self._generations) or self._embedder.busy

    @property
    def stats(self) -> Stats:
        """The state now. Any thread may ask."""
        scheduler, began = self._scheduler, self._step_began
        return Stats(
            running=scheduler.n_running,
            waiting=scheduler.n_waiting,
            kv_used=scheduler.n_computed,
            preempted=self.n_preempted,
            steps=self.n_steps + self._embedder.n_steps,
            in_steps=self.n_in_steps + self._embedder.n_steps,
            threads=self._runner.threads,
            step_s=0.0 if began is None else time.monotonic() - began,
        )

    # -- commands ------------------------------------------------------------------------------------------

    def handle(self, command: Command, *, prepared: bool = False) -> list[Event]:
        """Carries a command out. A generation only begins here and goes on in ``step``.

        ``prepared``: a ``Generate`` comes from ``prepare``. In the engine's process it does, and queries of the
        vocabulary do not come here, so that no text is tokenized between two steps.
        """
        assert not isinstance(command, Shutdown), "Shutdown is for the process"
        try:
            match command:
                case Generate():
                    ready = command if prepared else self.prepare(command)
                    return [ready] if isinstance(ready, Failure) else self._begin(ready)
                case Cancel(id=sequence_id):
                    self._end(sequence_id)
                    self._embedder.cancel(sequence_id)
                    return [Canceled(id=sequence_id)]
                case Tokenize() | Detokenize():
                    return [self.answer(command)]
                case Embed():
                    return self._embedder.add(command)
                case ListSlots():
                    return [Reply(id=command.id, value=self._scheduler.slot_states())]
                case SlotAction():
                    return [Reply(id=command.id, value=self._move_slot(command))]
        except LlamaError as error:
            return [Failure(id=command.id, code="invalid_request", message=str(error))]
        raise AssertionError(f"unknown command {command!r}")

    def _move_slot(self, asked: SlotAction) -> SlotMoved:
        """Saves, restores or erases a free slot. Raises ``LlamaError``."""
        began = time.perf_counter()
        slot, path = asked.slot, Path(asked.path)
        try:
            held = self._scheduler.cached(slot)
        except IndexError:
            raise LlamaError(f"there is no slot {slot}: this server has {self.info.slots}, from 0 on") from None
        if held is None:
            raise LlamaError(f"slot {slot} computes a request; try again when it has ended")
        n_bytes = 0
        match asked.action:
            case "save":
                if not held:
                    raise LlamaError(f"slot {slot} holds nothing")
                n_bytes = write_slot(path, self._cache_mark, self._runner.displaced(slot, held))
            case "restore":
                if not self._prefix_cache:
                    raise LlamaError("with this model and these options no slot keeps anything for later requests")
                found = read_slot(path, self._cache_mark)
                tokens = found.tokens
                if len(tokens) > self.info.context:
                    raise LlamaError(f"{path.name} has {len(tokens)} tokens; a slot has room for {self.info.context}")
                self._scheduler.drop_cached(slot)
                self._runner.put_slot(slot, found.state, len(tokens), found.kept)
                self._scheduler.put_cached(slot, tokens)
                held, n_bytes = tokens, path.stat().st_size
            case "erase":
                self._scheduler.drop_cached(slot)
                self._runner.free_slot(slot)
        return SlotMoved(n_tokens=len(held), n_bytes=n_bytes, seconds=time.perf_counter() - began)

    def prepare(self, request: Generate) -> Generate | Failure:
        """The request with its prompt as tokens, or why it cannot be carried out. Any thread may call this."""
        if not self._runner.generates:
            message = "this model makes embeddings and no text; ask /v1/embeddings"
            return Failure(id=request.id, code="invalid_request", message=message)
        try:
            return generation.prepare(request, model=self._model, context=self.info.context)
        except LlamaError as error:
            return Failure(id=request.id, code="invalid_request", message=str(error))

    def answer(self, query: Tokenize | Detokenize) -> Reply | Failure:
        """The answer to a query that needs the vocabulary alone. Any thread may call this."""
        try:
            if isinstance(query, Detokenize):
                raw = b"".join(self._vocabulary.piece(token) for token in query.tokens)
                return Reply(id=query.id, value=raw.decode("utf-8", errors="replace"))
            tokens, _ = tokenize_within(
                self._model,
                query.text,
                len(query.text) if query.limit is None else query.limit,
                add_special=query.add_special,
                parse_special=query.parse_special,
                literal_spans=query.literal_spans,
            )
            if query.with_pieces:
                return Reply(id=query.id, value=[(token, self._vocabulary.piece(token)) for token in tokens])
            return Reply(id=query.id, value=tokens)
        except LlamaError as error:
            return Failure(id=query.id, code="invalid_request", message=str(error))

    def _begin(self, request: Generate) -> list[Event]:
        assert request.id not in self._generations
        begun = generation.start(
            request,
            model=self._model,
            vocabulary=self._vocabulary,
            context=self.info.context,
            batch_invariant=self._batch_invariant,
            shifts=self._shifts,
        )
        self._generations[request.id] = begun
        self._next_deadline = min(self._next_deadline, begun.deadline)
        if request.sampling.grammar is None:
            self._scheduler.add(begun.sequence)
        else:
            self._constraints.begin(request.id, request.sampling.grammar)
        return []

    def count_tokens(self, request: Generate) -> int:
        """Tokens of the request's prompt. Counting may stop above the context's length, with a result above it."""
        return generation.n_prompt_tokens(request, model=self._model, context=self.info.context)

    def _end(self, sequence_id: str) -> None:
        ended = self._generations.pop(sequence_id, None)
        if ended is None:
            return
        self._constraints.cancel(sequence_id)
        slot = self._scheduler.remove(sequence_id)
        if self._proposer is not None:
            self._proposer.forget(sequence_id)
        # The cells of rejected draft tokens lie behind those that count.
        if slot is not None and not (self._prefix_cache and self._runner.settle(slot, ended.sequence.n_computed)):
            self._runner.free_slot(slot)
            self._scheduler.drop_cached(slot)
        ended.sampler.close()

    # -- the loop ------------------------------------------------------------------------------------------

    def step(self) -> list[Event]:
        """Computes one batch of generation and one of embeddings, where there are any. Returns the events; there are
        none when a sequence had to be preempted."""
        self._runner.adapt_threads()
        self._step_began = time.monotonic()
        try:
            events = self._expire() + self._add_constrained() + self._resume_late() + self._generate()
            self._constraints.begin_masks()
            return events + self._embedder.step()
        finally:
            self._step_began = None

    def _expire(self) -> list[Event]:
        """Ends the sequences past their deadline."""
        now = time.monotonic()
        if now < self._next_deadline:
            return []
        events: list[Event] = []
        for each in [each for each in self._generations.values() if each.deadline <= now]:
            if each.n_generated > 0:
                text = each.detokenizer.finish()
                finish: FinishReason = "stop" if each.detokenizer.stopped else "length"
                events.append(self._finish(each, text, finish, expired=True))
            else:
                message = f"No token was made within the {each.request.deadline_s:g} seconds that the request has."
                events += self._fail([each.sequence.id], message, code="deadline_exceeded")
        self._next_deadline = min((each.deadline for each in self._generations.values()), default=math.inf)
        return events

    def _add_constrained(self) -> list[Event]:
        """Queues the sequences with grammars that have been compiled."""
        events: list[Event] = []
        if self._constraints.busy:
            for sequence_id, result in self._constraints.take_ready(patient=self._only_waits()):
                if isinstance(result, Constraint):
                    self._generations[sequence_id].constraint = result
                    self._scheduler.add(self._generations[sequence_id].sequence)
                else:
                    events += self._fail([sequence_id], str(result), code="invalid_request")
        return events

    def _resume_late(self) -> list[Event]:
        """Samples for the sequences that waited for their masks and have them now."""
        events: list[Event] = []
        for each in list(self._generations.values()):
            row = each.late_row
            if row is None:
                continue
            assert each.constraint is not None
            if each.constraint.wait(_PATIENCE_S if self._only_waits() else 0):
                each.late_row = None
                try:
                    delta = self._sample_one(each, row)
                except LlamaError as error:
                    events += self._fail([each.sequence.id], str(error), code=_blame(error))
                else:
                    events += [delta] if delta is not None else []
        return events

    def _only_waits(self) -> bool:
        """Whether there is nothing to compute until a grammar or a mask is there."""
        return not self._scheduler.has_work and not self._embedder.busy

    def _generate(self) -> list[Event]:
        slot_tokens = self._runner.grow(self._scheduler.longest)
        if (reason := self._runner.no_growth) is not None:
            long = [key for key, each in self._generations.items() if len(each.sequence.tokens) > slot_tokens]
            if long:
                return self._fail(long, reason)
        if n_prompts := self._scheduler.n_prompts:
            pace, most = self._pace, self._most_prefilled
            paced = not self._batch_invariant
            self._scheduler.limit_prefill(
                streams=min(most, pace.tokens("long", prompts=n_prompts)) if paced else most,
                short=min(most, pace.tokens("short")) if paced else most,
                alone=pace.tokens("alone") if paced else self._runner.batch_limit,
                slot_tokens=slot_tokens,
            )
        self._bring_back()
        began = time.perf_counter()
        plan = self._scheduler.plan(self._propose(), self._runner.kept)
        if not plan.chunks:
            self._runner.wait_for_growth()
            return []
        self._keep_displaced(plan)
        events: list[Event] = []
        for sequence_id, _ in plan.admitted:
            admitted = self._generations[sequence_id]
            admitted.admitted()
            if admitted.request.return_progress:
                events.append(admitted.progress())
        self._constraints.begin_masks()
        try:
            try:
                last_rows = self._runner.run(plan)
            except KvCacheFull:
                if not any(chunk.n_drafted for chunk in plan.chunks):
                    raise
                plan = without_drafts(plan)
                last_rows = self._runner.run(plan)
        except SlotTooShortError as error:
            long = [chunk.sequence_id for chunk in plan.chunks if chunk.start + len(chunk.tokens) > error.length]
            return events + self._fail(long, str(error))
        except KvCacheFull:
            return events + self._make_room(plan.chunks[0].sequence_id)
        except LlamaError as error:
            # It is unknown what the cache holds now: no sequence that has a part of it can go on.
            held = [key for key, each in self._generations.items() if each.sequence.slot is not None]
            events += self._fail(held, str(error))
            while (slot := self._scheduler.evict()) is not None:
                self._runner.free_slot(slot)
            self._runner.free_all()
            return events
        self.n_steps += 1
        self.n_in_steps += len(plan.chunks)
        if n_prompt := self._scheduler.commit(plan):
            self._pace.prefilled(n_prompt, time.perf_counter() - began)
        else:
            self._pace.decoded(time.perf_counter() - began)
        masks_by = time.monotonic() + _PATIENCE_S
        for chunk, row in zip(plan.chunks, last_rows, strict=True):
            try:
                events += self._advance(self._generations[chunk.sequence_id], chunk, row, masks_by)
            except LlamaError as error:
                events += self._fail([chunk.sequence_id], str(error), code=_blame(error))
        return events

    def _bring_back(self) -> None:
        """Puts into a free slot what the next prompt begins with, where no slot holds it and memory does."""
        if not self._displaced or (wanted := self._scheduler.next_prompt()) is None:
            return
        tokens, n_held, slot = wanted
        best = self._displaced.best(tokens, more_than=n_held, whole=self._runner.keeps_states)
        found = None if best is None else self._displaced.take(best)
        if found is None:
            return
        if self._displaced.wants(held := self._scheduler.cached(slot) or (), 0):
            self._displaced.keep(self._runner.displaced(slot, held))
        self._scheduler.drop_cached(slot)
        with contextlib.suppress(LlamaError):  # then it is computed, as if it had not been kept
            self._runner.put_slot(slot, found.state, len(found.tokens), found.kept)
            self._scheduler.put_cached(slot, found.tokens)

    def _keep_displaced(self, plan: Plan) -> None:
        """Keeps what slots are about to lose to the sequences that are admitted."""
        for (_, slot), n_cached, source, held in zip(
            plan.admitted, plan.n_cached, plan.copied_from, plan.displaced, strict=True
        ):
            if self._displaced.wants(held, n_cached if source is None else 0):
                self._displaced.keep(self._runner.displaced(slot, held))

    def _make_room(self, first_id: str) -> list[Event]:
        """The cache is full: evicts what a free slot caches, else preempts the youngest sequence, else fails
        ``first_id``, the only one that runs."""
        evicted = self._scheduler.evict()
        if evicted is not None:
            self._runner.free_slot(evicted)
            return []
        preempted = self._scheduler.preempt()
        if preempted is None:
            return self._fail([first_id], "the KV cache cannot hold the sequence")
        self.n_preempted += 1
        self._runner.free_slot(preempted[1])
        return []

    def _fail(self, sequence_ids: list[str], message: str, code: FailureCode = "engine_error") -> list[Event]:
        for sequence_id in sequence_ids:
            self._end(sequence_id)
        return [Failure(id=each, code=code, message=message) for each in sequence_ids]

    def _finish(self, ended: Generation, text: str, finish: FinishReason, *, expired: bool = False) -> Delta:
        delta = ended.last_delta(text, finish, expired=expired)
        self._end(ended.sequence.id)
        return delta

    def _propose(self) -> dict[str, tuple[int, ...]]:
        """Draft tokens for the next step, by sequence."""
        if self._proposer is None:
            return {}
        generating = self._scheduler.generating
        most = {}
        for sequence in generating:
            each = self._generations[sequence.id]
            ends_thought = each.thought is not None and each.thought.is_due
            if each.request.speculate and sequence.n_to_compute == 1 and not ends_thought:
                # The row after the last accepted draft token gives one more token.
                most[sequence.id] = each.n_room - 1
        return self._proposer.propose(generating, most, self._runner.batch_limit)

    def _advance(self, current: Generation, chunk: Chunk, last_row: int, masks_by: float) -> list[Event]:
        """What follows from a chunk that was computed; ``last_row``: the batch index of its last token. ``masks_by``:
        until when (on the monotonic clock) a mask is waited for."""
        sequence = current.sequence
        if chunk.logits == "all" and not chunk.n_drafted:
            first_row = last_row - len(chunk.tokens) + 1
            current.score_prompt(chunk, lambda i: self._runner.logits(first_row + i), self._vocabulary)
        events: list[Event] = []
        if current.request.return_progress and not current.prefill_done:
            events.append(current.progress())
        if sequence.n_to_compute > 0:
            return events  # there is more of the prompt
        if not current.prefill_done:
            events.append(current.end_prefill())
        if current.max_generated == 0:
            return [*events, self._finish(current, "", "length")]
        constraint, current.late_row = current.constraint, None  # a row from before it was preempted
        patience_s = max(masks_by - time.monotonic(), 0.0)
        if constraint is not None and not chunk.n_drafted and not constraint.wait(patience_s):
            current.late_row = self._runner.logits(last_row)
            return events
        delta = self._sample_chunk(current, chunk, last_row) if chunk.n_drafted else self._sample_one(current, last_row)
        return [*events, delta] if delta is not None else events

    def _sample_one(self, current: Generation, row: int | np.ndarray) -> Delta | None:
        """Samples a token, and adds those that its grammar forces behind it. Where its reasoning has to end, the tokens
        that end it come instead."""
        thought, constraint = current.thought, current.constraint
        tokens: list[int] = []
        if thought is not None and thought.is_due:
            tokens = thought.cut(bool if constraint is None else constraint.allows)
        if tokens:
            tokens = tokens[: max(current.n_room, 1)]
            current.sequence.n_forced = len(tokens) - 1
            text, finish = self._append_forced(current, tokens)
        else:
            text, finish = self._sample(current, row)
        return self._sampled(current, text, finish)

    def _sampled(self, current: Generation, text: str, finish: FinishReason | None) -> Delta | None:
        """What a step gave a sequence, and what its grammar forces."""
        if finish is None and current.constraint is not None and current.sequence.n_to_compute == 1:
            more, finish = self._take_forced(current, current.constraint)
            text += more
        if finish is not None:
            return self._finish(current, text, finish)
        delta = current.delta(text)
        if len(current.sequence.tokens) >= current.context:
            self._shift(current)
        if current.constraint is not None:
            self._constraints.compute(current.constraint)
        return delta

    def _shift(self, current: Generation) -> None:
        """Drops a sequence's oldest tokens. Those behind them have other positions then: they are computed again."""
        sequence = current.sequence
        n_kept = current.drop_oldest(keeps=int(self._model.add_bos))
        if self._proposer is not None:
            self._proposer.forget(sequence.id)
        if sequence.slot is not None and not (n_kept and self._runner.truncate(sequence.slot, n_kept)):
            self._runner.free_slot(sequence.slot)
            n_kept = 0
        sequence.n_computed = n_kept

    def _take_forced(self, current: Generation, constraint: Constraint) -> tuple[str, FinishReason | None]:
        """Adds the tokens that must come next: they need no logits, and the next step computes them together."""
        if current.request.top_logprobs is not None:
            return "", None
        # With a cache per slot, llama.cpp computes the longer of two sequences in its own pass.
        least = 1 if self._runner.mixes or self._scheduler.n_running == 1 else LEAST_FORCED
        forced = constraint.forced(least, min(self._most_forced, current.n_room))
        current.sequence.n_forced = len(forced)
        return self._append_forced(current, forced)

    def _append_forced(self, current: Generation, tokens: list[int]) -> tuple[str, FinishReason | None]:
        """Makes tokens that were not sampled the sequence's. Returns as ``_sample``."""
        text = ""
        for token in tokens:
            if current.constraint is not None:
                current.constraint.accept(token)
            current.sampler.accept(token)
            more, finish = self._append(current, token)
            text += more
            if finish is not None:
                return text, finish
        return text, None

    def _sample_chunk(self, current: Generation, chunk: Chunk, last_row: int) -> Delta | None:
        """Samples a token from the row before the draft tokens of a chunk, and then from each draft token's own row,
        for as long as the sampler picks the draft tokens."""
        sequence, n = current.sequence, chunk.n_drafted
        text, n_accepted = "", 0
        drafts = chunk.tokens[len(chunk.tokens) - n :]
        while True:
            more, finish = self._sample(current, last_row - n + n_accepted)
            text += more
            if n_accepted == n or sequence.tokens[-1] != drafts[n_accepted]:
                break
            n_accepted += 1
            if finish is not None:
                break
            sequence.n_computed += 1
        assert self._proposer is not None
        current.n_drafted += n
        current.n_accepted += n_accepted
        self._proposer.observe(sequence.id, n, n_accepted)
        if finish is None and n_accepted < n and not self._runner.truncate(chunk.slot, sequence.n_computed):
            raise LlamaError("llama.cpp cannot take back tokens of this model; use serve.speculate=none")
        return self._sampled(current, text, finish)

    def _sample(self, current: Generation, row: int | np.ndarray) -> tuple[str, FinishReason | None]:
        """The sequence's next token, from a row of logits: an index of the batch, or a copy. Returns the text that
        comes out, and the reason to finish if the token is the last."""
        request, constraint = current.request, current.constraint
        waits = current.n_generated < request.sampling.min_tokens
        mask = None if constraint is None else constraint.mask()
        token = self._runner.sample(current.sampler, row, mask, self._endings(current) if waits else ())
        if request.top_logprobs is not None:
            logprobs = log_probabilities(self._runner.logits(row) if isinstance(row, int) else row)
            offset = current.detokenizer.n_decoded
            entry = self._vocabulary.logprob(token, logprobs, request.top_logprobs, offset=offset)
            current.pending_logprobs.append(replace(entry, is_eog=True) if self._ends(current, token) else entry)
        if constraint is not None:
            constraint.accept(token)
        return self._append(current, token)

    def _ends(self, current: Generation, token: int) -> bool:
        return self._model.is_eog(token) and not current.request.sampling.ignore_eos

    def _append(self, current: Generation, token: int) -> tuple[str, FinishReason | None]:
        """Makes a token the sequence's. Returns as ``_sample``."""
        detokenizer = current.detokenizer
        current.sequence.tokens.append(token)
        if current.thought is not None:
            current.thought.push(self._vocabulary.label(token).decode("utf-8", "replace"))
        if token in current.stop_tokens:
            return detokenizer.stop_at(current.stop_tokens[token]), "stop"
        if self._ends(current, token):
            return detokenizer.finish(), "stop"
        shown = current.shown.get(token)
        text = detokenizer.push(self._vocabulary.piece(token)) if shown is None else detokenizer.push_shown(shown)
        if detokenizer.stopped:
            return text, "stop"
        if current.constraint is not None and current.constraint.finished:
            return text + detokenizer.finish(), "stop"
        if current.n_generated >= current.max_generated:
            text += detokenizer.finish()
            return text, "stop" if detokenizer.stopped else "length"
        return text, None

    def _endings(self, current: Generation) -> tuple[int, ...]:
        """Tokens that would end the text."""
        return (*self._model.eog_tokens, *current.stop_tokens)

    def close(self) -> None:
        """Ends all generations and frees the model."""
        for sequence_id in list(self._generations):
            self._end(sequence_id)
        if self._proposer is not None:
            self._proposer.close()
        self._embedder.close()
        self._constraints.close()
        if self._files is not None:
            self._files.close()
        self._runner.close()
