"""Guesses at next tokens by a smaller model of the same vocabulary, with a KV cache of its own."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from pathlib import Path

from data.errors import UserError
from serve.engine.config import EngineConfig
from serve.engine.model_runner import Runner, measure_cost
from serve.engine.sequence import Sequence
from serve.engine.spec_decode.planner import LENGTHS, Acceptance, Candidate, Lookup, Planner
from slm.llama.context import Batch, Context
from slm.llama.errors import LlamaError
from slm.llama.model import Model

_MATCH = 8
"""The class of ``Acceptance`` that a draft's guesses are counted in."""


@dataclass(slots=True)
class _Held:
    """What the draft's cache has in a slot."""

    sequence_id: str = ""
    tokens: list[int] = field(default_factory=list)
    n_right: int = 0
    """Of these, so many are known to be the sequence's own."""


class Draft:
    """Guesses are what the draft model finds likeliest. Its slots are those of the model that it guesses for.

    Raises ``UserError`` where the two models do not have the same vocabulary.
    """

    def __init__(self, config: EngineConfig, runner: Runner) -> None:
        assert config.draft_model is not None
        target, shared = runner.model, config.kv_tokens > 0
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
                flash_attn=config.flash_attn,
            )
            self._batch = Batch(self._context.n_batch, config.slots)
            own = measure_cost(self._context, self._batch)
            target_cost = runner.step_cost()
        except BaseException:
            self.close()
            raise
        self._planner = Planner(
            target_cost,
            shared=shared,
            guess_cost=lambda sequences, n: n * own(sequences),
            always=config.draft_tokens,
        )
        self._catch_up = config.prefill_chunk
        self._held = [_Held() for _ in range(config.slots)]
        self._acceptance: dict[str, Acceptance] = {}

    def propose(self, sequences: Seq[Sequence], most: Mapping[str, int], room: int) -> dict[str, tuple[int, ...]]:
        """As ``Lookup.propose``. A sequence whose text the draft has not read yet gets no guesses until it has, a
        part in each step."""
        candidates, by_slot = [], {}
        for sequence in sequences:
            assert sequence.slot is not None
            by_slot[sequence.slot] = sequence
            limit = min(most.get(sequence.id, 0), LENGTHS[-1])
            if limit > 0:
                rate = self._acceptance.setdefault(sequence.id, Acceptance()).rate(_MATCH)
                candidates.append(Candidate(sequence.slot, rate, limit))
        chosen = self._planner.choose(list(by_slot), candidates, room)
        for each in candidates:
            if each.slot not in chosen:
                self._acceptance[by_slot[each.slot].id].relax(_MATCH)
        try:
            guesses = self._guess({slot: (by_slot[slot], n) for slot, n in chosen.items()})
        except LlamaError:
            # Its cache is full, or it is unknown what that holds. Without guesses, nothing is lost but time.
            assert self._context is not None
            self._context.clear()
            self._held = [_Held() for _ in self._held]
            return {}
        return {by_slot[slot].id: tuple(tokens) for slot, tokens in guesses.items()}

    def _guess(self, wanted: dict[int, tuple[Sequence, int]]) -> dict[int, list[int]]:
        """Greedy continuations by slot, of all sequences together, a token of each in every pass."""
        assert self._context is not None
        room = min(self._catch_up, self._batch.capacity)
        feed: dict[int, list[int]] = {}
        ready = set()
        for slot, (sequence, _) in sorted(wanted.items()):
            missing = self._missing(slot, sequence)
            # One token is always fed: there must be logits to guess from.
            feed[slot] = missing[:room]
            room -= len(feed[slot])
            if feed[slot] and len(feed[slot]) == len(missing):
                ready.add(slot)
        out: dict[int, list[int]] = {slot: [] for slot in ready}
        while feed := {slot: tokens for slot, tokens in feed.items() if tokens}:
            self._batch.clear()
            last = {}
            for slot, tokens in sorted(feed.items()):
                held = self._held[slot].tokens
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
        """Cuts a slot back to what is the sequence's; the tokens that it lacks, at least the newest."""
        assert self._context is not None
        held = self._held[slot]
        if held.sequence_id != sequence.id:
            held.sequence_id, held.n_right = sequence.id, 0
        n = held.n_right
        for ours, theirs in zip(held.tokens[n:], sequence.tokens[n:-1], strict=False):
            if ours != theirs:
                break
            n += 1
        if n < len(held.tokens):
            if not self._context.seq_rm(slot, n):
                raise LlamaError("the draft model's cache cannot take back tokens")
            del held.tokens[n:]
        held.n_right = n
        return sequence.tokens[n:]

    def learn(self, sequence_id: str, n_checked: int, n_right: int) -> None:
        """What became of the last guesses of a sequence."""
        self._acceptance[sequence_id].learn(_MATCH, n_checked, n_right)

    def forget(self, sequence_id: str) -> None:
        """The sequence has ended. What its slot holds may serve the next that begins alike."""
        self._acceptance.pop(sequence_id, None)

    def close(self) -> None:
        """Frees the cache and the model."""
        if self._context is not None:
            self._context.close()
            self._context = None
        self._model.close()


def check_vocabulary(draft: Model, target: Model, path: Path) -> None:
    """Raises ``UserError`` unless both models mean the same by every token id."""
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


def make_speculator(config: EngineConfig, runner: Runner) -> Lookup | Draft | None:
    """What makes the guesses that the configuration asks for; forgets what the runner has cached. Raises ``UserError``
    where the model or its draft cannot serve for that."""
    if config.speculate == "none":
        return None
    if config.speculate == "draft":
        return Draft(config, runner)
    return Lookup(Planner(runner.step_cost(), shared=config.kv_tokens > 0, always=config.draft_tokens))
