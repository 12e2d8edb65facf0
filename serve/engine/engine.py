"""The decode loop, one step at a time: plan, run, sample, make text. Knows nothing of processes or HTTP."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace

from serve.engine.config import EngineConfig
from serve.engine.detokenizer import TextStream
from serve.engine.embedder import Embedder
from serve.engine.messages import (
    Cancel,
    Command,
    Delta,
    Detokenize,
    Embed,
    Event,
    Failure,
    FailureCode,
    FinishReason,
    Generate,
    ModelInfo,
    Prompted,
    Reply,
    Stats,
    Tokenize,
    TokenLogprob,
)
from serve.engine.model_runner import Runner
from serve.engine.sampling import likeliest, log_probabilities, make_sampler
from serve.engine.scheduler import Chunk, Limits, Scheduler, without_guesses
from serve.engine.sequence import Sequence
from serve.engine.spec_decode.draft_model import make_speculator
from serve.engine.tokenize import SlowTokenizer, tokenize_within
from slm.llama.errors import GrammarDeadEndError, KvCacheFull, LlamaError
from slm.llama.sampler import Sampler


@dataclass(slots=True, eq=False, kw_only=True)
class _Generation:
    """A request in work."""

    request: Generate
    sequence: Sequence
    sampler: Sampler
    text: TextStream
    limit: int
    """Most tokens to generate."""
    ends_at: float = math.inf
    """On the monotonic clock."""
    began: float = field(default_factory=time.monotonic)
    queue_s: float | None = None
    """Until it first got a slot."""
    n_drafted: int = 0
    """Guesses that were checked."""
    n_accepted: int = 0
    """Of these, those that were right."""
    prompt_done: bool = False
    prompt_text: str = ""
    prompt_offsets: list[int] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    held_logprobs: list[TokenLogprob] = field(default_factory=list)
    """Of tokens whose text has not come out yet."""

    @property
    def n_generated(self) -> int:
        return len(self.sequence.tokens) - self.sequence.n_prompt


class Engine:
    """Takes commands, and gives events step by step. One request's failure never touches another's."""

    def __init__(self, config: EngineConfig) -> None:
        self._runner = Runner(config)
        self._model = self._runner.model
        self.info: ModelInfo = self._runner.info
        self._scheduler = Scheduler(
            slots=config.slots,
            limits=Limits(
                batch=self._runner.batch_limit,
                prefill_chunk=config.prefill_chunk,
                mixed=self._runner.mixes,
                kv_tokens=self.info.kv_tokens,
                prefix_cache=config.prefix_cache,
                min_copied=self._runner.min_copied,
                aligned=min(config.prefill_chunk, config.ubatch) if config.exact else 0,
            ),
        )
        self._embedder = Embedder(self._model, context=self.info.context, threads=self.info.threads)
        self._tokenizer = SlowTokenizer(self._model)
        self._speculator = make_speculator(config, self._runner)
        self._work: dict[str, _Generation] = {}
        self._prefix_cache, self._exact = config.prefix_cache, config.exact
        self._pieces: dict[int, bytes] = {}
        self._next_deadline = math.inf
        self.n_preempted = 0

    @property
    def busy(self) -> bool:
        """Whether ``step`` has something to do."""
        return bool(self._work) or self._embedder.busy or self._tokenizer.busy

    @property
    def stats(self) -> Stats:
        """The state now."""
        scheduler = self._scheduler
        return Stats(
            running=scheduler.n_running,
            waiting=scheduler.n_waiting,
            kv_used=scheduler.n_computed,
            preempted=self.n_preempted,
        )

    # -- commands ------------------------------------------------------------------------------------------

    def handle(self, command: Command) -> list[Event]:
        """Carries a command out; generation only begins here and goes on in ``step``."""
        try:
            match command:
                case Generate():
                    return self._begin(command)
                case Cancel(id=sequence_id):
                    self._end(sequence_id)
                    self._embedder.cancel(sequence_id)
                    self._tokenizer.cancel(sequence_id)
                    return []
                case Tokenize():
                    return self._tokenizer.add(command)
                case Detokenize():
                    raw = b"".join(self._piece(token) for token in command.tokens)
                    return [Reply(id=command.id, value=raw.decode("utf-8", errors="replace"))]
                case Embed():
                    return self._embedder.add(command)
        except LlamaError as error:
            return [Failure(id=command.id, code="invalid_request", message=str(error))]
        raise AssertionError(f"unknown command {command!r}")

    def _begin(self, request: Generate) -> list[Event]:
        assert request.id not in self._work
        context = self.info.context
        if isinstance(request.prompt, str):
            prompt, whole = tokenize_within(
                self._model,
                request.prompt,
                context,
                add_special=request.add_special,
                parse_special=request.parse_special,
            )
        else:
            prompt, whole = [self._model.check_token(token) for token in request.prompt], True
        if not prompt:
            # A model continues something: BOS, or the end of the document before, stands for "nothing".
            start = self._model.bos if self._model.bos >= 0 else self._model.eos
            if start < 0:
                return [Failure(id=request.id, code="invalid_request", message="the prompt has no tokens")]
            prompt = [start]
        room = context - len(prompt)
        if room < (0 if request.max_tokens == 0 else 1):
            message = (
                f"This model's maximum context length is {context} tokens, but the prompt has "
                f"{'' if whole else 'more than '}{len(prompt)}. Shorten it."
            )
            return [Failure(id=request.id, code="context_length_exceeded", message=message)]
        sequence = Sequence(
            id=request.id,
            tokens=prompt,
            n_prompt=len(prompt),
            # What is cached is the same to the bit, then.
            from_cache=request.from_cache or self._exact,
            scores_prompt=request.echo and request.top_logprobs is not None,
        )
        work = _Generation(
            request=request,
            sequence=sequence,
            sampler=make_sampler(self._model, request.sampling, prompt, context=context),
            text=TextStream(request.stop),
            limit=room if request.max_tokens is None else min(room, request.max_tokens),
            ends_at=math.inf if request.deadline_s is None else time.monotonic() + request.deadline_s,
        )
        if request.echo:
            self._spell_prompt(work)
        self._work[request.id] = work
        self._next_deadline = min(self._next_deadline, work.ends_at)
        self._scheduler.add(sequence)
        return []

    def _spell_prompt(self, work: _Generation) -> None:
        stream, parts = TextStream(), []
        for token in work.sequence.tokens:
            work.prompt_offsets.append(stream.total)
            parts.append(stream.push(self._piece(token)))
        work.prompt_text = "".join(parts) + stream.finish()

    def _end(self, sequence_id: str) -> None:
        work = self._work.pop(sequence_id, None)
        if work is None:
            return
        slot = self._scheduler.remove(sequence_id)
        if self._speculator is not None:
            self._speculator.forget(sequence_id)
        # Guesses that were not taken lie behind what is computed.
        if slot is not None and not (self._prefix_cache and self._runner.cut(slot, work.sequence.n_computed)):
            self._runner.forget(slot)
            self._scheduler.forget(slot)
        work.sampler.close()

    # -- the loop ------------------------------------------------------------------------------------------

    def step(self) -> list[Event]:
        """Computes one batch of generation and one of embeddings, where there are any; returns what came of it
        (nothing, when a sequence had to make room)."""
        events = self._expire() + self._generate() + self._embedder.step()
        if self._tokenizer.busy:
            events += self._tokenizer.step(patient=not (self._work or self._embedder.busy))
        return events

    def _expire(self) -> list[Event]:
        """Ends the sequences whose time is over."""
        now = time.monotonic()
        if now < self._next_deadline:
            return []
        events: list[Event] = []
        for work in [each for each in self._work.values() if each.ends_at <= now]:
            if work.n_generated > 0:
                events.append(self._finished(work, work.text.finish(), "stop" if work.text.stopped else "length"))
            else:
                message = f"No token was made within the {work.request.deadline_s:g} seconds that the request has."
                events += self._fail([work.sequence.id], message, code="deadline_exceeded")
        self._next_deadline = min((each.ends_at for each in self._work.values()), default=math.inf)
        return events

    def _generate(self) -> list[Event]:
        plan = self._scheduler.plan(self._guesses())
        if not plan.chunks:
            return []
        for sequence_id, _ in plan.admitted:
            work = self._work[sequence_id]
            work.queue_s = time.monotonic() - work.began if work.queue_s is None else work.queue_s
        try:
            try:
                last = self._runner.run(plan)
            except KvCacheFull:
                if not any(chunk.n_guesses for chunk in plan.chunks):
                    raise
                plan = without_guesses(plan)
                last = self._runner.run(plan)
        except KvCacheFull:
            evicted = self._scheduler.evict()
            if evicted is not None:
                self._runner.forget(evicted)
                return []
            preempted = self._scheduler.preempt()
            if preempted is None:
                return self._fail([plan.chunks[0].sequence_id], "the KV cache cannot hold the sequence")
            self.n_preempted += 1
            self._runner.forget(preempted[1])
            return []
        except LlamaError as error:
            # What the cache holds now is unknown for all: none of them can go on.
            events = self._fail(list(self._work), str(error))
            while (slot := self._scheduler.evict()) is not None:
                self._runner.forget(slot)
            self._runner.forget_all()
            return events
        self._scheduler.commit(plan)
        events: list[Event] = []
        for chunk, index in zip(plan.chunks, last, strict=True):
            try:
                events += self._advance(self._work[chunk.sequence_id], chunk, index)
            except GrammarDeadEndError as error:
                events += self._fail([chunk.sequence_id], str(error), code="invalid_request")
            except LlamaError as error:
                events += self._fail([chunk.sequence_id], str(error))
        return events

    def _fail(self, sequence_ids: list[str], message: str, code: FailureCode = "engine_error") -> list[Event]:
        for sequence_id in sequence_ids:
            self._end(sequence_id)
        return [Failure(id=each, code=code, message=message) for each in sequence_ids]

    def _advance(self, work: _Generation, chunk: Chunk, index: int) -> list[Event]:
        sequence = work.sequence
        if chunk.logits == "all" and not chunk.n_guesses:
            self._score_prompt(work, chunk, index)
        if sequence.n_left > 0:
            return []  # more of the prompt to come
        events: list[Event] = []
        if not work.prompt_done:
            work.prompt_done = True
            events.append(
                Prompted(
                    id=sequence.id,
                    prompt_tokens=sequence.n_prompt,
                    cached_tokens=sequence.n_cached,
                    queue_s=work.queue_s or 0.0,
                    text=work.prompt_text,
                    logprobs=tuple(work.prompt_logprobs),
                )
            )
        if work.limit == 0:
            return [*events, self._finished(work, "", "length")]
        return events + self._pick_all(work, chunk, index)

    def _guesses(self) -> dict[str, tuple[int, ...]]:
        """Tokens to check in the next step, by sequence."""
        if self._speculator is None:
            return {}
        generating = self._scheduler.generating
        most = {}
        for sequence in generating:
            work = self._work[sequence.id]
            if work.request.speculate:
                # The row after the last guess gives a token, too.
                most[sequence.id] = work.limit - work.n_generated - 1
        return self._speculator.propose(generating, most, self._runner.batch_limit)

    def _pick_all(self, work: _Generation, chunk: Chunk, index: int) -> list[Event]:
        """Picks a token from the last row of a chunk; where there are guesses, from the row before them and from
        each guess's own for as long as the picks are the guesses."""
        sequence, n = work.sequence, chunk.n_guesses
        text, finish, i = "", None, 0
        guesses = chunk.tokens[len(chunk.tokens) - n :]
        while True:
            more, finish = self._pick(work, index - n + i)
            text += more
            if i == n or sequence.tokens[-1] != guesses[i]:
                break
            i += 1
            if finish is not None:
                break
            sequence.n_computed += 1
        if n:
            assert self._speculator is not None
            work.n_drafted += n
            work.n_accepted += i
            self._speculator.learn(sequence.id, n, i)
        if finish is not None:
            return [self._finished(work, text, finish)]
        if i < n and not self._runner.cut(chunk.slot, sequence.n_computed):
            raise LlamaError("llama.cpp cannot take back tokens of this model; use serve.speculate=none")
        logprobs = self._shown_logprobs(work)
        if not text and not logprobs:
            return []
        return [Delta(id=sequence.id, text=text, logprobs=logprobs, completion_tokens=work.n_generated)]

    def _pick(self, work: _Generation, index: int) -> tuple[str, FinishReason | None]:
        """The sequence's next token from a row of logits: the text that it lets out, and whether it is the last."""
        sequence = work.sequence
        token = self._runner.sample(work.sampler, index)
        ends = self._model.is_eog(token) and not work.request.sampling.ignore_eos
        if work.request.top_logprobs is not None:
            row = log_probabilities(self._runner.logits(index))
            entry = self._logprob(token, row, work.request.top_logprobs, offset=work.text.total)
            work.held_logprobs.append(replace(entry, ends=True) if ends else entry)
        if ends:
            sequence.tokens.append(token)
            return work.text.finish(), "stop"
        sequence.tokens.append(token)
        text = work.text.push(self._piece(token))
        if work.text.stopped:
            return text, "stop"
        if work.n_generated >= work.limit:
            text += work.text.finish()
            return text, "stop" if work.text.stopped else "length"
        return text, None

    def _finished(self, work: _Generation, text: str, finish: FinishReason) -> Delta:
        # After a stop string, only the tokens that began before it count; otherwise all have come out.
        logprobs = self._shown_logprobs(work) if work.text.stopped else tuple(work.held_logprobs)
        self._end(work.sequence.id)
        return Delta(
            id=work.sequence.id,
            text=text,
            logprobs=logprobs,
            completion_tokens=work.n_generated,
            finish=finish,
            drafted_tokens=work.n_drafted,
            accepted_tokens=work.n_accepted,
        )

    # -- text and log-probabilities ------------------------------------------------------------------------

    def _piece(self, token: int) -> bytes:
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._model.token_to_piece(token)
        return piece

    def _logprob(self, token: int, row, n: int, *, offset: int) -> TokenLogprob:
        top = tuple((each, self._spell(each), float(row[each])) for each in likeliest(row, n))
        return TokenLogprob(token=token, piece=self._spell(token), logprob=float(row[token]), top=top, offset=offset)

    def _spell(self, token: int) -> bytes:
        """Like the text's, but control tokens show their names: a blank would tell nothing."""
        return self._piece(token) or self._model.token_to_piece(token, special=True)

    def _shown_logprobs(self, work: _Generation) -> tuple[TokenLogprob, ...]:
        shown = [each for each in work.held_logprobs if each.offset < work.text.emitted]
        work.held_logprobs = work.held_logprobs[len(shown) :]
        return tuple(shown)

    def _score_prompt(self, work: _Generation, chunk: Chunk, index: int) -> None:
        tokens, n = work.sequence.tokens, work.request.top_logprobs
        assert n is not None
        if not work.prompt_logprobs:
            first = tokens[0]
            work.prompt_logprobs.append(
                TokenLogprob(token=first, piece=self._spell(first), logprob=None, top=(), offset=0)
            )
        for i in range(len(chunk.tokens)):
            scored = chunk.start + i + 1  # these logits tell of the token after
            # A preempted sequence computes its prompt again: what is scored stays.
            if scored != len(work.prompt_logprobs) or scored >= work.sequence.n_prompt:
                continue
            row = log_probabilities(self._runner.logits(index - len(chunk.tokens) + 1 + i))
            work.prompt_logprobs.append(self._logprob(tokens[scored], row, n, offset=work.prompt_offsets[scored]))

    def close(self) -> None:
        """Ends all work and frees the model."""
        for sequence_id in list(self._work):
            self._end(sequence_id)
        if self._speculator is not None:
            self._speculator.close()
        self._embedder.close()
        self._tokenizer.close()
        self._runner.close()
