"""Draft tokens from a smaller model with the same vocabulary and its own KV cache."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from pathlib import Path

from slm.data.errors import UserError
from slm.llama.context import Batch, Context
from slm.llama.errors import LlamaError
from slm.llama.model import Model
from slm.serve.engine.batch_plan import Sequence
from slm.serve.engine.config import EngineConfig
from slm.serve.engine.model_runner import ModelRunner
from slm.serve.engine.spec_decode.planner import DRAFT_LENGTHS, Acceptance, Candidate, Planner
from slm.serve.engine.spec_decode.step_cost import measure_step_cost

_MATCH = 8
"""The class of ``Acceptance`` in which a draft model's tokens are counted."""


@dataclass(slots=True)
class _SlotState:
    """What the draft model's cache holds in a slot."""

    sequence_id: str = ""
    tokens: list[int] = field(default_factory=list)
    n_verified: int = 0
    """Leading tokens that are known to be the sequence's own."""


class DraftModelProposer:
    """Proposes the tokens that the draft model finds most likely; see ``Proposer``. A sequence has the same slot in the
    draft model's cache as in the target's.

    Raises ``UserError`` where the two models do not have the same vocabulary.
    """

    def __init__(self, config: EngineConfig, runner: ModelRunner) -> None:
        assert config.draft_model is not None
        target, shared = runner.model, config.kv_tokens > 0
        self._runner = runner
        self._model = Model(config.draft_model, n_gpu_layers=config.n_gpu_layers)
        self._context: Context | None = None
        try:
            check_vocabulary(self._model, target, config.draft_model)
            self._context = Context(
                self._model,
                n_ctx=runner.info.kv_tokens,
                n_batch=config.batch,
                n_ubatch=config.ubatch,
                n_seq_max=config.slots,
                n_threads=runner.info.threads,
                kv_unified=shared,
                kv_type=config.kv_type,
                kv_type_v=config.kv_type_v,
                flash_attn=config.flash_attn,
            )
            self._batch = Batch(self._context.n_batch, config.slots)
            own_cost = measure_step_cost(self._context, self._batch)
            target_cost = measure_step_cost(runner.context, runner.batch)
        except BaseException:
            self.close()
            raise
        self._planner = Planner(
            target_cost,
            shared=shared,
            draft_cost=lambda sequences, n: n * own_cost(sequences),
            always=config.draft_tokens,
        )
        self._prefill_room = config.prefill_chunk
        self._slots = [_SlotState() for _ in range(config.slots)]
        self._acceptance: dict[str, Acceptance] = {}

    def propose(self, sequences: Seq[Sequence], most: Mapping[str, int], room: int) -> dict[str, tuple[int, ...]]:
        """See ``Proposer.propose``. The draft model first computes what its cache lacks of a sequence, a chunk in each
        step; until that is done, the sequence gets no draft tokens."""
        candidates, by_slot = [], {}
        for sequence in sequences:
            assert sequence.slot is not None
            by_slot[sequence.slot] = sequence
            limit = min(most.get(sequence.id, 0), DRAFT_LENGTHS[-1])
            if limit > 0:
                rate = self._acceptance.setdefault(sequence.id, Acceptance()).rate(_MATCH)
                candidates.append(Candidate(sequence.slot, rate, limit))
        chosen = self._planner.choose(list(by_slot), candidates, room)
        for each in candidates:
            if each.slot not in chosen:
                self._acceptance[by_slot[each.slot].id].relax(_MATCH)
        try:
            drafts = self._draft({slot: (by_slot[slot], n) for slot, n in chosen.items()})
        except LlamaError:
            # The cache is full, or what it holds is unknown. Without draft tokens, only time is lost.
            assert self._context is not None
            self._context.clear()
            self._slots = [_SlotState() for _ in self._slots]
            return {}
        return {by_slot[slot].id: tuple(tokens) for slot, tokens in drafts.items()}

    def _draft(self, wanted: dict[int, tuple[Sequence, int]]) -> dict[int, list[int]]:
        """Greedy continuations by slot. Every pass computes one token of each sequence."""
        assert self._context is not None
        room = min(self._prefill_room, self._batch.capacity)
        feed: dict[int, list[int]] = {}
        ready = set()
        for slot, (sequence, _) in sorted(wanted.items()):
            # At least one token is missing, so there are logits to draft from.
            missing = self._missing(slot, sequence)
            feed[slot] = missing[:room]
            room -= len(feed[slot])
            if feed[slot] and len(feed[slot]) == len(missing):
                ready.add(slot)
        out: dict[int, list[int]] = {slot: [] for slot in ready}
        while feed := {slot: tokens for slot, tokens in feed.items() if tokens}:
            self._batch.clear()
            self._context.set_threads(self._runner.threads)
            last = {}
            for slot, tokens in sorted(feed.items()):
                held = self._slots[slot].tokens
                last[slot] = self._batch.extend(tokens, len(held), slot, slot in ready)
                held.extend(tokens)
            self._context.decode(self._batch)
            feed = {}
            for slot in ready & last.keys():
                out[slot].append(self._context.likeliest(last[slot]))
                if len(out[slot]) < wanted[slot][1]:
                    feed[slot] = out[slot][-1:]
        return out

    def _missing(self, slot: int, sequence: Sequence) -> list[int]:
        """Cuts a slot back to the tokens that it shares with the sequence; returns the sequence's other tokens, at
        least the newest."""
        assert self._context is not None
        held = self._slots[slot]
        if held.sequence_id != sequence.id:
            held.sequence_id, held.n_verified = sequence.id, 0
        n = held.n_verified
        for ours, theirs in zip(held.tokens[n:], sequence.tokens[n:-1], strict=False):
            if ours != theirs:
                break
            n += 1
        if n < len(held.tokens):
            if not self._context.seq_rm(slot, n):
                raise LlamaError("the draft model's cache cannot take back tokens")
            del held.tokens[n:]
        held.n_verified = n
        return sequence.tokens[n:]

    def observe(self, sequence_id: str, n_drafted: int, n_accepted: int) -> None:
        """See ``Proposer.observe``."""
        self._acceptance[sequence_id].observe(_MATCH, n_drafted, n_accepted)

    def forget(self, sequence_id: str) -> None:
        """The sequence has ended. What its slot holds may serve the next one, as far as their tokens are the same."""
        self._acceptance.pop(sequence_id, None)

    def close(self) -> None:
        """Frees the cache and the model."""
        if self._context is not None:
            self._context.close()
            self._context = None
        self._model.close()


def check_vocabulary(draft: Model, target: Model, path: Path) -> None:
    """Raises ``UserError`` unless every token id means the same to both models."""
    if draft.n_vocab != target.n_vocab:
        raise UserError(
            f"serve.draft_model={path} has {draft.n_vocab} tokens and the model has {target.n_vocab}; "
            "a draft must be a run with the same tokenizer"
        )
    for token, (ours, theirs) in enumerate(zip(draft.spellings, target.spellings, strict=True)):
        if ours != theirs or draft.is_eog(token) != target.is_eog(token):
            raise UserError(
                f"serve.draft_model={path} means {ours!r} by token {token} and the model means {theirs!r}; "
                "a draft must be a run with the same tokenizer"
            )
