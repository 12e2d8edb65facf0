"""The decode loop, one step at a time: plan, run, sample, make text. Knows nothing of processes or HTTP."""

from __future__ import annotations

from dataclasses import dataclass, field

from serve.config import EngineConfig
from serve.detokenize import TextStream
from serve.embedder import Embedder
from serve.messages import (
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
from serve.runner import Runner
from serve.sampler import likeliest, log_probabilities, make_sampler
from serve.scheduler import Chunk, Limits, Scheduler
from serve.sequence import Sequence
from slm.llama_sampler import GrammarDeadEndError, Sampler
from slm.llamacpp import KvCacheFull, LlamaError


@dataclass(slots=True, eq=False, kw_only=True)
class _Generation:
    """A request in work."""

    request: Generate
    sequence: Sequence
    sampler: Sampler
    text: TextStream
    limit: int
    """Most tokens to generate."""
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
                kv_tokens=self.info.kv_tokens,
                prefix_cache=config.prefix_cache,
            ),
        )
        self._embedder = Embedder(self._model, context=self.info.context, threads=self.info.threads)
        self._work: dict[str, _Generation] = {}
        self._prefix_cache = config.prefix_cache
        self._pieces: dict[int, bytes] = {}
        self.n_preempted = 0

    @property
    def busy(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._work) or self._embedder.busy

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
        """Carries a command out; generation only begins here and goes on in `step`."""
        try:
            match command:
                case Generate():
                    return self._begin(command)
                case Cancel(id=sequence_id):
                    self._end(sequence_id)
                    self._embedder.cancel(sequence_id)
                    return []
                case Tokenize():
                    ids = self._model.tokenize(
                        command.text, add_special=command.add_special, parse_special=command.parse_special
                    )
                    return [Reply(id=command.id, value=ids)]
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
        if isinstance(request.prompt, str):
            prompt = self._model.tokenize(
                request.prompt, add_special=request.add_special, parse_special=request.parse_special
            )
        else:
            prompt = [self._model.check_token(token) for token in request.prompt]
        context = self.info.context
        if not prompt:
            # A model continues something: BOS, or the end of the document before, stands for "nothing".
            start = self._model.bos if self._model.bos >= 0 else self._model.eos
            if start < 0:
                return [Failure(id=request.id, code="invalid_request", message="the prompt has no tokens")]
            prompt = [start]
        room = context - len(prompt)
        if room < (0 if request.max_tokens == 0 else 1):
            message = (
                f"This model's maximum context length is {context} tokens, but the prompt has {len(prompt)}. "
                f"Shorten it."
            )
            return [Failure(id=request.id, code="context_length_exceeded", message=message)]
        sequence = Sequence(
            id=request.id,
            tokens=prompt,
            n_prompt=len(prompt),
            from_cache=request.from_cache,
            scores_prompt=request.echo and request.top_logprobs is not None,
        )
        work = _Generation(
            request=request,
            sequence=sequence,
            sampler=make_sampler(self._model, request.sampling, prompt, context=context),
            text=TextStream(request.stop),
            limit=room if request.max_tokens is None else min(room, request.max_tokens),
        )
        if request.echo:
            self._spell_prompt(work)
        self._work[request.id] = work
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
        if slot is not None and not (self._prefix_cache and self._runner.holds(slot, work.sequence.n_computed)):
            self._runner.forget(slot)
            self._scheduler.forget(slot)
        work.sampler.close()

    # -- the loop ------------------------------------------------------------------------------------------

    def step(self) -> list[Event]:
        """Computes one batch of generation and one of embeddings, where there are any; returns what came of it
        (nothing, when a sequence had to make room)."""
        return self._generate() + self._embedder.step()

    def _generate(self) -> list[Event]:
        plan = self._scheduler.plan()
        if not plan.chunks:
            return []
        try:
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
        if chunk.logits == "all":
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
                    text=work.prompt_text,
                    logprobs=tuple(work.prompt_logprobs),
                )
            )
        if work.limit == 0:
            return [*events, self._finished(work, "", "length")]
        token = self._runner.sample(work.sampler, index)
        if self._model.is_eog(token) and not work.request.sampling.ignore_eos:
            sequence.tokens.append(token)
            return [*events, self._finished(work, work.text.finish(), "stop")]
        if work.request.top_logprobs is not None:
            row = log_probabilities(self._runner.logits(index))
            work.held_logprobs.append(self._logprob(token, row, work.request.top_logprobs, offset=work.text.total))
        sequence.tokens.append(token)
        text = work.text.push(self._piece(token))
        if work.text.stopped:
            return [*events, self._finished(work, text, "stop")]
        if work.n_generated >= work.limit:
            text += work.text.finish()
            return [*events, self._finished(work, text, "stop" if work.text.stopped else "length")]
        logprobs = self._shown_logprobs(work)
        if text or logprobs:
            events.append(Delta(id=sequence.id, text=text, logprobs=logprobs, completion_tokens=work.n_generated))
        return events

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
        self._embedder.close()
        self._runner.close()
