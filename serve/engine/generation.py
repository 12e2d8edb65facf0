"""The state of one request while the engine works on it: its sequence, its sampler, its text and its log-probabilities.

Tested in tests/serve/engine/test_engine.py.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from serve.engine.batch_plan import Chunk
from serve.engine.detokenizer import Detokenizer
from serve.engine.messages import Delta, Failure, FinishReason, Generate, PrefillDone, TokenLogprob
from serve.engine.sampling import log_probabilities, make_sampler
from serve.engine.sequence import Sequence
from serve.engine.tokenize import tokenize_within
from serve.engine.vocabulary import Vocabulary
from slm.llama.model import Model
from slm.llama.sampler import Sampler


@dataclass(slots=True, eq=False, kw_only=True)
class Generation:
    """A request that has been taken; ``start`` makes one."""

    request: Generate
    sequence: Sequence
    sampler: Sampler
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

    def last_delta(self, text: str, finish: FinishReason) -> Delta:
        """The last event of the sequence."""
        # After a stop string, only the tokens that began before it count. Otherwise all of the text has come out.
        logprobs = self._take_logprobs() if self.detokenizer.stopped else tuple(self.pending_logprobs)
        return Delta(
            id=self.sequence.id,
            text=text,
            logprobs=logprobs,
            completion_tokens=self.n_generated,
            finish=finish,
            drafted_tokens=self.n_drafted,
            accepted_tokens=self.n_accepted,
        )

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
    if isinstance(request.prompt, str):
        prompt, complete = tokenize_within(
            model,
            request.prompt,
            context,
            add_special=request.add_special,
            parse_special=request.parse_special,
            literal_spans=request.literal_spans,
        )
    else:
        prompt, complete = [model.check_token(token) for token in request.prompt], True
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
    generation = Generation(
        request=request,
        sequence=Sequence(
            id=request.id,
            tokens=prompt,
            n_prompt=len(prompt),
            # Batch-invariant, what is cached is the same to the bit.
            use_prefix_cache=request.use_prefix_cache or batch_invariant,
            scores_prompt=request.echo and request.top_logprobs is not None,
        ),
        sampler=make_sampler(model, request.sampling, prompt, context=context),
        detokenizer=Detokenizer(request.stop),
        max_generated=room if request.max_tokens is None else min(room, request.max_tokens),
        deadline=math.inf if request.deadline_s is None else time.monotonic() + request.deadline_s,
    )
    if request.echo:
        generation.prompt_text, generation.prompt_offsets = _prompt_text(prompt, vocabulary)
    return generation


def _prompt_text(tokens: list[int], vocabulary: Vocabulary) -> tuple[str, list[int]]:
    """The text of a prompt's tokens, and the number of characters before each."""
    detokenizer = Detokenizer()
    offsets, pieces = [], []
    for token in tokens:
        offsets.append(detokenizer.n_decoded)
        pieces.append(detokenizer.push(vocabulary.piece(token)))
    return "".join(pieces) + detokenizer.finish(), offsets
