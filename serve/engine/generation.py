"""The state of one request while the engine works on it: its sequence, its sampler, its text and its log-probabilities.

Tested in tests/serve/engine/test_engine.py, tests/serve/engine/test_sampling.py.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from slm.llama.model import Model
from slm.llama.sampler import Sampler
from slm.serve.engine.batch_plan import Chunk, Sequence
from slm.serve.engine.protocol import (
    Delta,
    Failure,
    FinishReason,
    Generate,
    PrefillDone,
    PrefillProgress,
    SamplingParams,
    StoppedBy,
    TokenLogprob,
)
from slm.serve.engine.thought import Thought
from slm.serve.engine.tokenize import Detokenizer, Vocabulary, log_probabilities, tokenize_within
from slm.serve.grammar.constraints import Constraint

_NO_LIMIT = 2**62


@dataclass(slots=True, eq=False, kw_only=True)
class Generation:
    """A request that has been taken; ``start`` makes one."""

    request: Generate
    sequence: Sequence
    sampler: Sampler
    constraint: Constraint | None = None
    """What its grammar allows next."""
    late_row: np.ndarray | None = None
    """float32 [n_vocab]: logits from which the next token is sampled when its mask is there."""
    detokenizer: Detokenizer
    stop_tokens: dict[int, str | None]
    """Tokens that end it, with the stop strings that name them; None: an id of the request."""
    max_generated: int
    """Most tokens to generate."""
    context: int
    """Most tokens that it has at a time."""
    thought: Thought | None = None
    """The limit of its reasoning."""
    shown: dict[int, bytes] = field(default_factory=dict)
    """Tokens that add their names to the text, control tokens or not."""
    deadline: float
    """On the monotonic clock."""
    started: float = field(default_factory=time.monotonic)
    queue_s: float | None = None
    """Seconds until it first got a slot."""
    prefill_ended: float = 0.0
    """On the monotonic clock."""
    n_reported: int = 0
    """Number of generated tokens with reported ids."""
    n_drafted: int = 0
    """Draft tokens that were verified."""
    n_accepted: int = 0
    """Draft tokens that were accepted."""
    prefill_done: bool = False
    prompt_text: str = ""
    prompt_offsets: list[int] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    pending_logprobs: list[TokenLogprob] = field(default_factory=list)
    """Log-probabilities of tokens with text still held back."""

    @property
    def n_generated(self) -> int:
        return self.sequence.n_generated

    @property
    def n_room(self) -> int:
        """Tokens that still fit its limit and the context."""
        return min(self.max_generated - self.n_generated, self.context - len(self.sequence.tokens))

    def admitted(self) -> None:
        """The sequence got a slot; only the first time counts."""
        if self.queue_s is None:
            self.queue_s = time.monotonic() - self.started

    def progress(self) -> PrefillProgress:
        """The event about how much of the prompt is computed."""
        return PrefillProgress(
            id=self.sequence.id,
            prompt_tokens=self.sequence.n_prompt,
            cached_tokens=self.sequence.n_cached,
            processed=min(self.sequence.n_computed, self.sequence.n_prompt),
            seconds=time.monotonic() - self.started - (self.queue_s or 0.0),
        )

    def end_prefill(self) -> PrefillDone:
        """Marks the prompt as computed; returns the event that says so."""
        self.prefill_done = True
        self.prefill_ended = time.monotonic()
        queue_s = self.queue_s or 0.0
        return PrefillDone(
            id=self.sequence.id,
            prompt_tokens=self.sequence.n_prompt,
            cached_tokens=self.sequence.n_cached,
            queue_s=queue_s,
            prefill_s=self.prefill_ended - self.started - queue_s,
            text=self.prompt_text,
            logprobs=tuple(self.prompt_logprobs),
        )

    def score_prompt(self, chunk: Chunk, logits: Callable[[int], np.ndarray], vocabulary: Vocabulary) -> None:
        """Adds the log-probabilities of the prompt tokens that follow those of a chunk; ``logits(i)``: the row of the
        chunk's i-th token."""
        tokens, n_top = self.sequence.tokens, self.request.top_logprobs
        assert n_top is not None
        if not self.prompt_logprobs:
            self.prompt_logprobs.append(vocabulary.first_logprob(tokens[0]))
        for i in range(len(chunk.tokens)):
            scored = chunk.start + i + 1  # logits belong to the token after
            # A preempted sequence computes its prompt again; what has been scored stays.
            if scored != len(self.prompt_logprobs) or scored >= self.sequence.n_prompt:
                continue
            row = log_probabilities(logits(i))
            entry = vocabulary.logprob(tokens[scored], row, n_top, offset=self.prompt_offsets[scored])
            self.prompt_logprobs.append(entry)

    def delta(self, text: str) -> Delta | None:
        """The event for text that came out in a step; None where there is nothing to report."""
        logprobs = self._take_logprobs()
        if not text and not logprobs:
            return None
        return Delta(
            id=self.sequence.id,
            text=text,
            logprobs=logprobs,
            tokens=self._take_tokens(),
            completion_tokens=self.n_generated,
            decode_s=time.monotonic() - self.prefill_ended,
        )

    def last_delta(self, text: str, finish: FinishReason, *, expired: bool = False) -> Delta:
        """The last event of the sequence. ``expired``: its time is over."""
        # After a stop string, only the tokens that began before it count. Otherwise all of the text has come out.
        logprobs = self._take_logprobs() if self.detokenizer.stopped else tuple(self.pending_logprobs)
        return Delta(
            id=self.sequence.id,
            text=text,
            logprobs=logprobs,
            tokens=self._take_tokens(),
            completion_tokens=self.n_generated,
            decode_s=time.monotonic() - self.prefill_ended,
            finish=finish,
            stopped_by=self._limit(expired) if finish == "length" else None,
            stop_string=self.detokenizer.stop_string,
            drafted_tokens=self.n_drafted,
            accepted_tokens=self.n_accepted,
            dropped_tokens=self.sequence.n_dropped,
        )

    def _limit(self, expired: bool) -> StoppedBy:
        if expired:
            return "timeout_s"
        return "max_tokens" if self.max_generated == self.request.max_tokens else "context"

    def _take_tokens(self) -> tuple[int, ...]:
        """Ids of the tokens that have not been reported, where the request asks for them."""
        if not self.request.return_tokens:
            return ()
        n_new, self.n_reported = self.n_generated - self.n_reported, self.n_generated
        return tuple(self.sequence.tokens[len(self.sequence.tokens) - n_new :])

    def drop_oldest(self, *, keeps: int) -> int:
        """The context is full: drops tokens behind the first ``n_keep``, which are ``keeps`` at least (BOS). Returns
        how many stay in front of the gap."""
        sequence, asked = self.sequence, self.request
        n_keep = sequence.n_prompt if asked.n_keep < 0 else asked.n_keep
        # A quarter of the context is free then, at least.
        n_keep = max(keeps, min(n_keep, self.context // 2))
        n_left = len(sequence.tokens) - n_keep
        n_discard = min(asked.n_discard or (n_left + 1) // 2, n_left - 1)
        del sequence.tokens[n_keep : n_keep + n_discard]
        sequence.n_dropped += n_discard
        sequence.stops, sequence.scores_prompt, sequence.n_forced = (), False, 0
        return n_keep

    def _take_logprobs(self) -> tuple[TokenLogprob, ...]:
        """Those of tokens with text that has begun to come out."""
        ready = [each for each in self.pending_logprobs if each.offset < self.detokenizer.n_emitted]
        self.pending_logprobs = self.pending_logprobs[len(ready) :]
        return tuple(ready)


def prepare(request: Generate, *, model: Model, context: int) -> Generate | Failure:
    """The request with its prompt as tokens, or why it cannot be carried out.

    ``context``: most tokens of a sequence. Only the vocabulary is read, so any thread may call this. Raises
    ``LlamaError`` for a bad token id.
    """
    prompt, complete = _prompt_tokens(request, model, context)
    if not prompt:
        # A model needs something to continue. BOS, or the end of a document before, stands for an empty prompt.
        first = model.bos if model.bos >= 0 else model.eos
        if first < 0:
            return Failure(id=request.id, code="invalid_request", message="the prompt has no tokens")
        prompt = [first]
    if context - len(prompt) < (0 if request.max_tokens == 0 else 1):
        message = (
            f"This model's maximum context length is {context} tokens, but the prompt has "
            f"{'' if complete else 'more than '}{len(prompt)}, which exceeds the available context size. Shorten it."
        )
        counts = {"n_tokens": len(prompt), "n_context": context}
        return Failure(id=request.id, code="context_length_exceeded", message=message, **counts)
    return replace(request, prompt=tuple(prompt), literal_spans=())


def start(
    request: Generate,
    *,
    model: Model,
    vocabulary: Vocabulary,
    context: int,
    batch_invariant: bool,
    shifts: bool = False,
) -> Generation:
    """Begins a request that ``prepare`` has returned. ``shifts``: it may go on when the context is full.
    Raises ``LlamaError`` for a bad sampling parameter."""
    assert isinstance(request.prompt, tuple)
    prompt = [each for each in request.prompt if isinstance(each, int)]
    assert len(prompt) == len(request.prompt)
    room = math.inf if shifts else context - len(prompt)
    prompt_text, prompt_offsets = _prompt_text(prompt, vocabulary) if request.echo else ("", [])
    return Generation(
        request=request,
        sequence=Sequence(
            id=request.id,
            tokens=prompt,
            n_prompt=len(prompt),
            wanted_slot=request.slot,
            adapters=request.adapters,
            # Batch-invariant, what is cached is the same to the bit.
            use_prefix_cache=request.use_prefix_cache or batch_invariant,
            scores_prompt=request.echo and request.top_logprobs is not None,
        ),
        detokenizer=Detokenizer(request.stop, request.stop_until, request.headers),
        stop_tokens=dict.fromkeys(request.sampling.stop_token_ids) | _stop_tokens(model, request),
        max_generated=int(min(room, _NO_LIMIT if request.max_tokens is None else request.max_tokens)),
        context=context,
        thought=_thought(request, model),
        shown=_shown(model, request.shown),
        deadline=math.inf if request.deadline_s is None else time.monotonic() + request.deadline_s,
        prompt_text=prompt_text,
        prompt_offsets=prompt_offsets,
        # Last: it holds memory of llama.cpp's, which an error after it would leave behind.
        sampler=make_sampler(model, request.sampling, prompt, context=context),
    )


def _thought(request: Generate, model: Model) -> Thought | None:
    if (asked := request.thought) is None:
        return None

    def tokens(text: str) -> list[int]:
        return model.tokenize(text, add_special=False, parse_special=True)

    return Thought(
        asked.tokens,
        opened=asked.opened,
        begin=asked.begin,
        ends=asked.ends,
        end_tokens=tokens(asked.written or asked.ends[0]),
        again=[tokens(each) for each in asked.again],
    )


def n_prompt_tokens(request: Generate, *, model: Model, context: int) -> int:
    """Tokens of the prompt; more than ``context`` where it does not fit."""
    return len(_prompt_tokens(request, model, context)[0])


def _prompt_tokens(request: Generate, model: Model, context: int) -> tuple[list[int], bool]:
    """The prompt's tokens, and whether these are all: a long text is not tokenized to its end."""
    if not isinstance(request.prompt, str):
        tokens: list[int] = []
        for i, each in enumerate(request.prompt):
            if isinstance(each, int):
                tokens.append(model.check_token(each))
                continue
            more, complete = tokenize_within(
                model, each, context, add_special=request.add_special and i == 0, parse_special=request.parse_special
            )
            tokens += more
            if not complete:
                return tokens, False
        return tokens, True
    return tokenize_within(
        model,
        request.prompt,
        context,
        add_special=request.add_special,
        parse_special=request.parse_special,
        literal_spans=request.literal_spans,
    )


def make_sampler(model: Model, params: SamplingParams, prompt: list[int], *, context: int) -> Sampler:
    """One sequence's sampler chain, in llama.cpp's order: logit bias, penalties, DRY, top-n-sigma, top-k,
    typical, top-p, min-p, XTC, temperature, draw. Mirostat comes in place of those from top-n-sigma to XTC.

    The frequency and presence penalties count the reply's tokens. The repeat penalty also counts the prompt's, within
    its window; where it is on, the three share that window. ``context``: most tokens of the sequence. Raises
    ``LlamaError`` for values out of range.
    """
    chain = Sampler(model)
    try:
        bias = _biases(model, params.logit_bias)
        if params.ignore_eos:
            bias |= dict.fromkeys(model.eog_tokens, -math.inf)
        chain.logit_bias(bias)
        repeats = params.repeat_penalty != 1.0
        if repeats or params.frequency_penalty or params.presence_penalty:
            chain.penalties(
                last_n=params.repeat_last_n if repeats else context,
                repeat=params.repeat_penalty,
                frequency=params.frequency_penalty,
                presence=params.presence_penalty,
            )
        # llama.cpp reads the last 32-bit value as "any seed".
        seed = params.seed % (2**32 - 1)
        if params.dry_multiplier > 0:
            chain.dry(
                multiplier=params.dry_multiplier,
                base=params.dry_base,
                allowed_length=params.dry_allowed_length,
                last_n=context if params.dry_penalty_last_n < 0 else params.dry_penalty_last_n,
                breakers=params.dry_sequence_breakers,
                history=prompt,
            )
        if params.temperature == 0:
            chain.greedy()
        elif params.mirostat:
            chain.temperature(max(params.temperature, 1e-3))
            chain.mirostat(params.mirostat, tau=params.mirostat_tau, eta=params.mirostat_eta, seed=seed)
        else:
            if params.top_n_sigma > 0:
                chain.top_n_sigma(params.top_n_sigma)
            if params.top_k > 0:
                chain.top_k(params.top_k)
            if params.typical_p < 1:
                # Its sums are NaN where a token has no probability at all, so banned tokens are removed first.
                chain.top_k(model.n_vocab - sum(value == -math.inf for value in bias.values()))
                chain.typical(params.typical_p)
            if params.top_p < 1:
                chain.top_p(params.top_p)
            if params.min_p > 0:
                chain.min_p(params.min_p)
            if params.xtc_probability > 0:
                chain.xtc(params.xtc_probability, params.xtc_threshold, seed=seed)
            if params.dynatemp_range > 0:
                spread, exponent = params.dynatemp_range, params.dynatemp_exponent
                chain.dynamic_temperature(max(params.temperature, 1e-3), spread=spread, exponent=exponent)
            else:
                chain.temperature(max(params.temperature, 1e-3))
            chain.dist(seed)
        if repeats:
            for token in prompt[-params.repeat_last_n :] if params.repeat_last_n > 0 else []:
                chain.accept(token)
    except BaseException:
        chain.close()
        raise
    return chain


def _stop_tokens(model: Model, request: Generate) -> dict[int, str | None]:
    """The control tokens that stop strings name: they add nothing to the text, in which they could be found. Those
    around a reply's headers end no reply."""
    found: dict[int, str | None] = {}
    around = () if request.headers is None else request.shown
    for each in request.stop:
        if each not in around:
            found |= dict.fromkeys(_control_token(model, each), each)
    return found


def _control_token(model: Model, name: str) -> list[int]:
    """The token of that name, if it adds nothing to the text; else none."""
    return [token for token in _token(model, name) if not model.token_to_piece(token)]


def _token(model: Model, name: str) -> list[int]:
    """The token of that name; none where the name is several."""
    tokens = model.tokenize(name, add_special=False, parse_special=True)
    return tokens if len(tokens) == 1 else []


def _shown(model: Model, names: tuple[str, ...]) -> dict[int, bytes]:
    """What the tokens of these names add to the text: the name where a vocabulary has it as a control token."""
    return {token: model.token_to_piece(token) or name.encode() for name in names for token in _token(model, name)}


def _biases(model: Model, given: tuple[tuple[int | str, float], ...]) -> dict[int, float]:
    """Each token's bias; a text gives its own to all of its tokens, and names of control tokens are those."""
    bias: dict[int, float] = {}
    for key, value in given:
        for token in [key] if isinstance(key, int) else model.tokenize(key, add_special=False, parse_special=True):
            bias[token] = value
    return bias


def _prompt_text(tokens: list[int], vocabulary: Vocabulary) -> tuple[str, list[int]]:
    """The text of a prompt's tokens, and the number of characters before each."""
    detokenizer = Detokenizer()
    offsets, pieces = [], []
    for token in tokens:
        offsets.append(detokenizer.n_decoded)
        pieces.append(detokenizer.push(vocabulary.piece(token)))
    return "".join(pieces) + detokenizer.finish(), offsets
