"""Keeps one engine process alive and brings requests to it and events back.

Lives on the server's asyncio loop. Two threads per process move messages, so that neither a long prompt on its
way in nor a step of the engine can block the loop. When the process dies, what was in flight fails, and a new
process is started; while there is none, ``ready`` is False.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import time
from collections.abc import Sequence

from data.errors import UserError
from serve.engine.config import EngineConfig
from serve.engine.messages import (
    Answer,
    Cancel,
    Delta,
    Embeddings,
    Event,
    Failure,
    Generate,
    ModelInfo,
    Prompted,
    Question,
    Ready,
    Reply,
    StartFailed,
    Stats,
)
from serve.pool.counters import Counters, SequenceTimes
from serve.pool.engine_process import EngineProcess
from serve.pool.request_stream import EngineDownError, QueueFullError, RequestFailedError, RequestStream

_MAX_BACKOFF_S = 5.0


class EngineClient:
    """Starts, feeds and restarts the engine. All methods belong to the event loop's thread."""

    def __init__(
        self, config: EngineConfig, *, max_waiting: int, counters: Counters | None = None, name: str = ""
    ) -> None:
        self._config = config
        self._called = f" of {name}" if name else ""
        self._max_in_flight = config.slots + max_waiting
        self._streams: dict[str, RequestStream] = {}
        self._questions: dict[str, asyncio.Future[Answer]] = {}
        self._ids = itertools.count()
        self._process: EngineProcess | None = None
        self._closing = False
        self._started: asyncio.Future[ModelInfo] | None = None
        self._restart_task: asyncio.Task[None] | None = None
        self._backoff_s = 0.0
        self._times: dict[str, SequenceTimes] = {}
        self.counters = counters if counters is not None else Counters()
        self.stats = Stats()
        self.ready = False
        self.info: ModelInfo | None = None

    # -- life ----------------------------------------------------------------------------------------------

    async def start(self) -> ModelInfo:
        """Starts the first engine and waits for it. Raises ``UserError`` when it cannot serve the model."""
        self._loop = asyncio.get_running_loop()
        self.info = await self._spawn()
        self.counters.loads += 1
        return self.info

    def _spawn(self) -> asyncio.Future[ModelInfo]:
        self._started = self._loop.create_future()
        self._process = EngineProcess(
            self._config,
            on_events=lambda process, events: self._from_thread(self._dispatch, process, events),
            on_end=lambda process: self._from_thread(self._ended, process),
        )
        return self._started

    def _from_thread(self, function, *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
            self._loop.call_soon_threadsafe(function, *args)

    def _ended(self, process: EngineProcess) -> None:
        if process is not self._process:
            return
        self.ready = False
        self._keep_stats()
        self._process = None
        exit_code = process.stop(1.0)
        assert self._started is not None
        if not self._started.done():
            self._started.set_exception(UserError(f"the engine process ended while loading ({exit_code})"))
        message = "The engine stopped while it worked on this request; try again."
        self._fail_all("engine_died", message)
        # A first start that fails is the caller's to tell; only an engine that has worked is started again.
        if not self._closing and self._restart_task is None and self.info is not None:
            print(
                f"the engine process{self._called} ended ({exit_code}); starting another", file=sys.stderr, flush=True
            )
            self._restart_task = self._loop.create_task(self._restart())

    async def _restart(self) -> None:
        try:
            while not self._closing:
                await asyncio.sleep(self._backoff_s)
                self._backoff_s = min(max(2 * self._backoff_s, 0.5), _MAX_BACKOFF_S)
                self.counters.restarts += 1
                began = time.perf_counter()
                try:
                    self.info = await self._spawn()
                except UserError as error:
                    print(f"the engine{self._called} does not start: {error}", file=sys.stderr, flush=True)
                    continue
                if not self.ready:
                    continue  # it died again before we came to know that it was there
                took = time.perf_counter() - began
                print(f"the engine{self._called} is back after {took:.1f} s", file=sys.stderr, flush=True)
                return
        finally:
            self._restart_task = None

    def _keep_stats(self) -> None:
        self.counters.preempted += self.stats.preempted
        self.stats = Stats()

    def _fail_all(self, code: str, message: str) -> None:
        for sequence_id, stream in self._streams.items():
            stream.put(Failure(id=sequence_id, code=code, message=message))
            self.counters.finished[code] += 1
        self._streams.clear()
        self._times.clear()
        for question in self._questions.values():
            if not question.done():
                question.set_exception(EngineDownError(message))
        self._questions.clear()

    async def close(self, timeout_s: float = 5.0) -> None:
        """Ends the engine; what is in flight fails."""
        self._closing = True
        self.ready = False
        self._keep_stats()
        if self._restart_task is not None:
            self._restart_task.cancel()
        process, self._process = self._process, None
        if process is not None:
            await asyncio.to_thread(process.stop, timeout_s)
        self._fail_all("engine_died", "The server is shutting down.")

    # -- events --------------------------------------------------------------------------------------------

    def _dispatch(self, process: EngineProcess, events: list[Event]) -> None:
        if process is not self._process:
            return
        assert self._started is not None
        for event in events:
            match event:
                case Ready(info=info):
                    self.ready = True
                    self._started.set_result(info)
                case Stats():
                    self.stats = event
                case StartFailed(message=message):
                    self._started.set_exception(UserError(message))
                case Reply(id=key, value=value):
                    question = self._questions.pop(key, None)
                    if question is not None and not question.done():
                        question.set_result(value)
                case Failure(id=key) if key in self._questions:
                    question = self._questions.pop(key)
                    if not question.done():
                        question.set_exception(RequestFailedError(event))
                case Prompted(id=key) | Delta(id=key) | Failure(id=key):
                    # Somebody is served: what went wrong before is over.
                    self._backoff_s = 0.0
                    self._deliver(key, event)

    def _deliver(self, key: str, event: Prompted | Delta | Failure) -> None:
        stream = self._streams.get(key)
        if stream is None:
            return  # canceled while the event was on its way
        if isinstance(event, Delta):
            self.counters.observe(self._times[event.id], event)
        if isinstance(event, Prompted):
            self.counters.prompt_tokens += event.prompt_tokens
            self.counters.cached_tokens += event.cached_tokens
        elif isinstance(event, Failure) or event.finish:
            del self._streams[key]
            self._times.pop(key, None)
            reason = event.code if isinstance(event, Failure) else event.finish
            self.counters.finished[reason] += 1
            if isinstance(event, Delta):
                self.counters.completion_tokens += event.completion_tokens
                self.counters.drafted_tokens += event.drafted_tokens
                self.counters.accepted_tokens += event.accepted_tokens
        stream.put(event)

    # -- requests ------------------------------------------------------------------------------------------

    @property
    def n_in_flight(self) -> int:
        """Sequences that run or wait."""
        return len(self._streams)

    def next_id(self) -> str:
        """A new sequence id."""
        return f"s{next(self._ids)}"

    def submit(self, requests: Sequence[Generate]) -> RequestStream:
        """Hands the sequences to the engine, all or none. Raises ``QueueFullError`` or ``EngineDownError``."""
        if not self.ready or self._process is None:
            raise EngineDownError("The engine is starting; try again in a few seconds.")
        if len(self._streams) + len(requests) > self._max_in_flight:
            raise QueueFullError(f"{len(self._streams)} requests are running or waiting; try again later.")
        stream = RequestStream([request.id for request in requests], self.cancel)
        for request in requests:
            self._streams[request.id] = stream
            self._times[request.id] = SequenceTimes(time.perf_counter())
            self._process.send(request)
        return stream

    def cancel(self, sequence_id: str) -> None:
        """Frees the slot of an unfinished sequence within a step of the engine."""
        if self._streams.pop(sequence_id, None) is not None and self._process is not None:
            self._times.pop(sequence_id, None)
            self.counters.finished["canceled"] += 1
            self._process.send(Cancel(id=sequence_id))

    async def ask(self, question: Question) -> Answer:
        """The engine's answer. Raises ``QueueFullError``, ``EngineDownError`` or ``RequestFailedError``. Canceled, it
        cancels the engine's work."""
        if not self.ready or self._process is None:
            raise EngineDownError("The engine is starting; try again in a few seconds.")
        if len(self._questions) >= self._max_in_flight:
            raise QueueFullError(f"{len(self._questions)} requests are waiting for an answer; try again later.")
        future = self._questions[question.id] = self._loop.create_future()
        self._process.send(question)
        try:
            answer = await future
        finally:
            if self._questions.pop(question.id, None) is not None and self._process is not None:
                self._process.send(Cancel(id=question.id))
        if isinstance(answer, Embeddings):
            self.counters.embedding_tokens += answer.n_tokens
        return answer
