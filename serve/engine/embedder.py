"""Embeddings next to generation: a small separate context on the same weights, one batch at a time.

An embedding is what the model's file says ("pooling"): the mean over the tokens of the last layer's normed output, that
of the first token (CLS) or that of the last one, scaled to length 1; of a reranking model it is the scores. Generation
never waits longer for it than one batch takes, with the tokenizing of what is in it, and shares no cache with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from slm.llama.adapter import Adapter
from slm.llama.context import Batch, Context
from slm.llama.errors import LlamaError
from slm.llama.model import Model
from slm.serve.engine.protocol import Embed, Embeddings, Event, Failure, Reply
from slm.serve.engine.tokenize import tokenize_within

_BATCH = 128
"""Tokens per step, where texts may be cut. llama.cpp keeps the logits of each of them, too, so more would also cost
memory."""
_SEQUENCES = 16
_LOGITS = 1 << 27
"""Most logits of a text that may not be cut: half a gigabyte."""


@dataclass(slots=True, eq=False, kw_only=True)
class _Request:
    """A command in work."""

    id: str
    vectors: list[bytes | None]
    """Per input; None: not computed yet."""
    n_tokens: int = 0
    """Tokens of the inputs tokenized so far."""


@dataclass(slots=True, eq=False, kw_only=True)
class _Input:
    """One text of a request."""

    request: _Request
    index: int
    text: str
    tokens: list[int]
    """Empty until the text is tokenized, which is when its turn comes: thousands at once would take seconds."""
    slot: int = -1
    n_computed: int = 0
    total: np.ndarray | None = None
    """float32 [n_embd]: of the computed tokens, the sum, or the first or newest one's output; None before any."""


class Embedder:
    """A queue of texts. The context is made when the first text comes: most servers never need one.

    ``threads`` is asked before each batch.
    """

    def __init__(
        self, model: Model, *, context: int, threads: Callable[[], int], adapter: Adapter | None = None
    ) -> None:
        self._adapter = adapter
        self._model, self._n_ctx, self._threads = model, context, threads
        self._ranks = model.pooling == "rank"
        # Every token of an encoder sees all the others, and a score is made of the whole text, too.
        self._whole = self._ranks or not model.causal
        if self._whole:
            # An encoder computes no logits. It may have a table of positions, which ends with its context.
            most = model.n_ctx_train if not model.causal else max(_LOGITS // model.n_vocab, 1)
            self._n_ctx = min(context, most)
        self.n_steps = 0
        """Batches computed."""
        self._queue: deque[_Input] = deque()
        self._context: Context | None = None
        self._batch = Batch(max(_BATCH, self._n_ctx) if self._whole else _BATCH, _SEQUENCES)

    @property
    def busy(self) -> bool:
        """Whether ``step`` has something to do."""
        return bool(self._queue)

    def add(self, command: Embed) -> list[Event]:
        """Queues the inputs of a request; returns a failure where that cannot be. Raises ``LlamaError`` for a bad token
        id."""
        request = _Request(id=command.id, vectors=[None] * len(command.inputs))
        inputs: list[_Input] = []
        for i, given in enumerate(command.inputs):
            text, ids = (given, ()) if isinstance(given, str) else ("", given)
            tokens: list[int] = []
            for part in ids:
                if isinstance(part, int):
                    tokens.append(self._model.check_token(part))
                else:
                    found, _ = tokenize_within(self._model, part, self._n_ctx, add_special=False, parse_special=False)
                    tokens += found
            each = _Input(request=request, index=i, text=text, tokens=tokens)
            failure = None if text else self._unfit(each, complete=True)
            if failure is not None:
                return [failure]
            request.n_tokens += len(each.tokens)
            inputs.append(each)
        if self._context is None:
            # Room for one input of any length next to a batch of others.
            self._context = Context(
                self._model,
                n_ctx=self._n_ctx + _BATCH,
                n_batch=self._batch.capacity,
                n_ubatch=self._batch.capacity,
                n_seq_max=_SEQUENCES,
                n_threads=self._threads(),
                embeddings=not self._ranks,
                ranks=self._ranks,
                adapter=self._adapter,
            )
        self._queue.extend(inputs)
        return []

    def _unfit(self, each: _Input, *, complete: bool) -> Failure | None:
        """The failure of an input without tokens, or with more than the context holds. ``complete``: whether all of
        them are known."""
        request, n = each.request, len(each.tokens)
        if n == 0:
            return Failure(id=request.id, code="invalid_request", message=f"input {each.index} has no tokens")
        if n > self._n_ctx:
            has = f"has {'' if complete else 'more than '}{n} tokens and is too large"
            message = f"input {each.index} {has}; this server embeds at most {self._n_ctx} at a time."
            counts = {"n_tokens": n, "n_context": self._n_ctx}
            return Failure(id=request.id, code="context_length_exceeded", message=message, **counts)
        return None

    def _tokenize(self, each: _Input) -> Failure | None:
        """Tokenizes the input's text; returns its failure where it cannot be embedded."""
        try:
            each.tokens, complete = tokenize_within(
                self._model, each.text, self._n_ctx, add_special=True, parse_special=False
            )
        except LlamaError as error:
            return Failure(id=each.request.id, code="invalid_request", message=str(error))
        each.text = ""
        each.request.n_tokens += len(each.tokens)
        return self._unfit(each, complete=complete)

    def cancel(self, request_id: str) -> None:
        """Forgets a request's inputs."""
        for each in self._queue:
            if each.request.id == request_id and each.slot >= 0:
                assert self._context is not None
                self._context.seq_rm(each.slot)
        self._queue = deque(each for each in self._queue if each.request.id != request_id)

    def step(self) -> list[Event]:
        """Computes one batch; returns the replies that it completes."""
        if not self._queue:
            return []
        assert self._context is not None
        chunks, events = self._fill()
        if not chunks:
            return events
        self._context.set_threads(self._threads())
        try:
            self._context.decode(self._batch)
            rows = None if self._ranks else self._context.embeddings_all(len(self._batch))
        except LlamaError as error:
            failed = dict.fromkeys(each.request.id for each in self._queue)
            self._queue.clear()
            self._context.clear()
            return [*events, *(Failure(id=each, code="engine_error", message=str(error)) for each in failed)]
        self.n_steps += 1
        start = 0
        for each, n in chunks:
            first, start = start, start + n
            if each not in self._queue:
                continue  # another input of its request has failed in this batch
            self._pool(each, None if rows is None else rows[first:start])
            each.n_computed += n
            if each.n_computed == len(each.tokens):
                self._queue.popleft()
                self._context.seq_rm(each.slot)
                events += self._finished(each)
        return events

    def _pool(self, each: _Input, rows: np.ndarray | None) -> None:
        """Adds the outputs of more tokens, float32 [n, n_embd]; None: the scores of the whole."""
        assert self._context is not None
        if rows is None:
            each.total = self._context.scores(each.slot)
        elif self._model.pooling == "cls":
            each.total = rows[0].copy() if each.total is None else each.total
        elif self._model.pooling == "last":
            each.total = rows[-1].copy()
        else:
            added = rows.sum(axis=0, dtype=np.float64)
            each.total = (added if each.total is None else each.total + added).astype(np.float32)

    def _fill(self) -> tuple[list[tuple[_Input, int]], list[Event]]:
        """Fills the batch with inputs in order; only the last may stay unfinished. Returns them with their number of
        tokens in the batch, and the failures of requests with a text that cannot be embedded, which are forgotten."""
        failures: list[Event] = []
        while True:
            chunks, failure = self._fill_until_failure()
            if failure is None:
                return chunks, failures
            self.cancel(failure.id)
            failures.append(failure)

    def _fill_until_failure(self) -> tuple[list[tuple[_Input, int]], Failure | None]:
        assert self._context is not None
        self._batch.clear()
        chunks: list[tuple[_Input, int]] = []
        free = sorted(set(range(_SEQUENCES)) - {each.slot for each in self._queue})
        for each in self._queue:
            room = _BATCH - len(self._batch)
            if room <= 0 or (each.slot < 0 and not free):
                break
            failure = self._tokenize(each) if not each.tokens else None
            if failure is not None:
                return [], failure
            if self._whole:
                if chunks and len(each.tokens) > room:
                    break
                room = len(each.tokens)
            if each.slot < 0:
                each.slot = free.pop(0)
            chunk = each.tokens[each.n_computed : each.n_computed + room]
            self._batch.extend(chunk, each.n_computed, each.slot, True, every=True)
            chunks.append((each, len(chunk)))
        return chunks, None

    def _finished(self, each: _Input) -> list[Event]:
        request = each.request
        assert each.total is not None
        # The mean has the sum's direction, and only that counts.
        length = float(np.sqrt(np.square(each.total, dtype=np.float64).sum()))
        scale = 1.0 if self._ranks else length or 1.0
        if not np.isfinite(length):
            self.cancel(request.id)
            return [Failure(id=request.id, code="engine_error", message="the embedding is not a number")]
        request.vectors[each.index] = (each.total / scale).astype("<f4").tobytes()
        each.total = None
        if any(vector is None for vector in request.vectors):
            return []
        vectors = tuple(vector for vector in request.vectors if vector is not None)
        return [Reply(id=request.id, value=Embeddings(vectors=vectors, n_tokens=request.n_tokens))]

    def close(self) -> None:
        """Frees the context."""
        self._queue.clear()
        if self._context is not None:
            self._context.close()
            self._context = None
