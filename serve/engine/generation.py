"""The state of one request while the engine works on it: its sequence, its sampler, its text and its log-probabilities.

Tested in tests/serve/engine/test_engine.py, tests/serve/engine/test_sampling.py.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from slm.llama.model import Model
from slm.llama.sampler import Sampler
from slm.serve.engine.batch_plan import Chunk
from slm.serve.engine.constraints import Constraint
from slm.serve.engine.messages import (
    Delta,
    Failure,
    FinishReason,
    Generate,
    PrefillDone,
    SamplingParams,
    StoppedBy,
    TokenLogprob,
)
from slm.serve.engine.sequence import Sequence
from slm.serve.engine.tokenize import Detokenizer, tokenize_within
from slm.serve.engine.vocabulary import Vocabulary, log_probabilities


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
    max_generated: int
    """Most tokens to generate."""
    deadline: float
    """On the monotonic clock."""
    started: float = field(default_factory=time.monotonic)
    queue_s: float | None = None
    """Seconds until it first got a slot."""
    n_drafted: int = 0
    """Draft tokens that were verified."""
    n_accepted: int = 0
    """Of these, those that were accepted."""
    prefill_done: bool = False
    prompt_text: str = ""
    prompt_offsets: list[int] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    pending_logprobs: list[TokenLogprob] = field(default_factory=list)
    """Of tokens whose text has not come out yet."""

    @property
    def n_generated(self) -> int:
        return len(self.sequence.tokens) - self.sequence.n_prompt

    def admitted(self) -> None:
        """The sequence got a slot; only the first time counts."""
        if self.queue_s is None:
            self.queue_s = time.monotonic() - self.started

    def end_prefill(self) -> PrefillDone:
        """Marks the prompt as computed; returns the event that says so."""
        self.prefill_done = True
        return PrefillDone(
            id=self.sequence.id,
            prompt_tokens=self.sequence.n_prompt,
            cached_tokens=self.sequence.n_cached,
            queue_s=self.queue_s or 0.0,
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
        return Delta(id=self.sequence.id, text=text, logprobs=logprobs, completion_tokens=self.n_generated)

    def last_delta(self, text: str, finish: FinishReason, *, expired: bool = False) -> Delta:
        """The last event of the sequence. ``expired``: its time is over."""
        # After a stop string, only the tokens that began before it count. Otherwise all of the text has come out.
        logprobs = self._take_logprobs() if self.detokenizer.stopped else tuple(self.pending_logprobs)
        return Delta(
            id=self.sequence.id,
            text=text,
            logprobs=logprobs,
            completion_tokens=self.n_generated,
            finish=finish,
            stopped_by=self._limit(expired) if finish == "length" else None,
            stop_string=self.detokenizer.stop_string,
            drafted_tokens=self.n_drafted,
            accepted_tokens=self.n_accepted,
        )

    def _limit(self, expired: bool) -> StoppedBy:
        if expired:
            return "timeout_s"
        return "max_tokens" if self.max_generated == self.request.max_tokens else "context"

    def _take_logprobs(self) -> tuple[TokenLogprob, ...]:
        """Those of tokens whose text has begun to come out."""
        ready = [each for each in self.pending_logprobs if each.offset < self.detokenizer.n_emitted]
        self.pending_logprobs = self.pending_logprobs[len(ready) :]
        return tuple(ready)


def start(
    request: Generate, *, model: Model, vocabulary: Vocabulary, context: int, batch_invariant: bool
) -> Generation | Failure:
    """Tokenizes the prompt and makes the sampler, or says why the request cannot be carried out.

    ``context``: most tokens of a sequence. Raises ``LlamaError`` for a bad token id or sampling parameter.
    """
    prompt, complete = _prompt_tokens(request, model, context)
    if not prompt:
        # A model needs something to continue. BOS, or the end of a document before, stands for an empty prompt.
        first = model.bos if model.bos >= 0 else model.eos
        if first < 0:
            return Failure(id=request.id, code="invalid_request", message="the prompt has no tokens")
        prompt = [first]
    room = context - len(prompt)
    if room < (0 if request.max_tokens == 0 else 1):
        message = (
            f"This model's maximum context length is {context} tokens, but the prompt has "
            f"{'' if complete else 'more than '}{len(prompt)}. Shorten it."
        )
        return Failure(id=request.id, code="context_length_exceeded", message=message)
    prompt_text, prompt_offsets = _prompt_text(prompt, vocabulary) if request.echo else ("", [])
    return Generation(
        request=request,
        sequence=Sequence(
            id=request.id,
            tokens=prompt,
            n_prompt=len(prompt),
            # Batch-invariant, what is cached is the same to the bit.
            use_prefix_cache=request.use_prefix_cache or batch_invariant,
            scores_prompt=request.echo and request.top_logprobs is not None,
        ),
        detokenizer=Detokenizer(request.stop),
        max_generated=room if request.max_tokens is None else min(room, request.max_tokens),
        deadline=math.inf if request.deadline_s is None else time.monotonic() + request.deadline_s,
        prompt_text=prompt_text,
        prompt_offsets=prompt_offsets,
        # Last: it holds memory of llama.cpp's, which an error after it would leave behind.
        sampler=make_sampler(model, request.sampling, prompt, context=context),
    )


def n_prompt_tokens(request: Generate, *, model: Model, context: int) -> int:
    """Tokens of the prompt; more than ``context`` where it does not fit."""
    return len(_prompt_tokens(request, model, context)[0])


def _prompt_tokens(request: Generate, model: Model, context: int) -> tuple[list[int], bool]:
    """The prompt's tokens, and whether these are all: a long text is not tokenized to its end."""
    if not isinstance(request.prompt, str):
        return [model.check_token(token) for token in request.prompt], True
    return tokenize_within(
        model,
        request.prompt,
        context,
        add_special=request.add_special,
        parse_special=request.parse_special,
        literal_spans=request.literal_spans,
    )


def make_sampler(model: Model, params: SamplingParams, prompt: list[int], *, context: int) -> Sampler:
    """One sequence's sampler chain, in llama.cpp's order: logit bias, penalties, top-k, typical, top-p,
    min-p, temperature, draw.

    The frequency and presence penalties count the reply's tokens. The repeat penalty also counts the prompt's, within
    its window; where it is on, the three share that window. ``context``: most tokens of the sequence. Raises
    ``LlamaError`` for values out of range.
    """
    chain = Sampler(model)
    try:
        bias = dict(params.logit_bias)
        if params.ignore_eos and model.eos >= 0:
            bias[model.eos] = -math.inf
        chain.logit_bias(bias)
        repeats = params.repeat_penalty != 1.0
        if repeats or params.frequency_penalty or params.presence_penalty:
            chain.penalties(
                last_n=params.repeat_last_n if repeats else context,
                repeat=params.repeat_penalty,
                frequency=params.frequency_penalty,
                presence=params.presence_penalty,
            )
        if params.temperature == 0:
            chain.greedy()
        else:
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
            chain.temperature(max(params.temperature, 1e-3))
            # llama.cpp reads the last 32-bit value as "any seed".
            chain.dist(params.seed % (2**32 - 1))
        if repeats:
            for token in prompt[-params.repeat_last_n :] if params.repeat_last_n > 0 else []:
                chain.accept(token)
    except BaseException:
        chain.close()
        raise
    return chain


def _prompt_text(tokens: list[int], vocabulary: Vocabulary) -> tuple[str, list[int]]:
    """The text of a prompt's tokens, and the number of characters before each."""
    detokenizer = Detokenizer()
    offsets, pieces = [], []
    for token in tokens:
        offsets.append(detokenizer.n_decoded)
        pieces.append(detokenizer.push(vocabulary.piece(token)))
    return "".join(pieces) + detokenizer.finish(), offsets
