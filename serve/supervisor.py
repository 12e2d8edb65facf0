"""Keeps one engine process alive and brings requests to it and events back.

Lives on the server's asyncio loop. Two threads per process move messages, so that neither a long prompt on its
way in nor a step of the engine can block the loop. When the process dies, what was in flight fails, and a new
process is started; while there is none, `ready` is False.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import multiprocessing
import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from data.errors import UserError
from serve.config import EngineConfig
from serve.histogram import BETWEEN_S, LATENCY_S, Histogram
from serve.messages import (
    Answer,
    Cancel,
    Command,
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
    Shutdown,
    StartFailed,
    Stats,
)
from serve.worker import run_process

_MAX_BACKOFF_S = 5.0


class QueueFullError(Exception):
    """As many requests wait as may."""


class EngineDownError(Exception):
    """There is no engine at the moment; one is being started."""


class RequestFailedError(Exception):
    """The engine refused or lost the request."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.code = failure.code


class Ticket:
    """A request's sequences on their way: their events as they come. `cancel` it when leaving early."""

    def __init__(self, supervisor: Supervisor, sequence_ids: list[str]) -> None:
        self._supervisor = supervisor
        self._index = {sequence_id: i for i, sequence_id in enumerate(sequence_ids)}
        self._left = set(sequence_ids)
        self._events: asyncio.Queue[Prompted | Delta | Failure] = asyncio.Queue()

    def put(self, event: Prompted | Delta | Failure) -> None:
        """Called by the supervisor."""
        self._events.put_nowait(event)

    @property
    def done(self) -> bool:
        """Whether every sequence has finished and all its events were taken."""
        return not self._left

    async def next_events(self) -> list[tuple[int, Prompted | Delta]]:
        """All events that are there, at least one, each with the index of its sequence.

        Raises `RequestFailedError` when a sequence failed; the others then are of no use.
        """
        events = [await self._events.get()]
        while not self._events.empty():
            events.append(self._events.get_nowait())
        out = []
        for event in events:
            if isinstance(event, Failure):
                raise RequestFailedError(event)
            if isinstance(event, Delta) and event.finish:
                self._left.discard(event.id)
            out.append((self._index[event.id], event))
        return out

    def cancel(self) -> None:
        """Nothing more is wanted; frees the slots of what is unfinished. Safe to call at any time."""
        for sequence_id in self._index:
            self._supervisor.cancel(sequence_id)


@dataclass
class Totals:
    """Counted since the server's start, over all lives of the engine."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    embedding_tokens: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    """Sequences by how they ended."""
    preempted: int = 0
    """By engines that have ended."""
    ttft: Histogram = field(default_factory=lambda: Histogram(LATENCY_S))
    itl: Histogram = field(default_factory=lambda: Histogram(BETWEEN_S))
    e2e: Histogram = field(default_factory=lambda: Histogram(LATENCY_S))


@dataclass(slots=True)
class _Clock:
    """When things happened to a sequence."""

    submitted: float
    last: float | None = None
    """Its newest text; None before the first."""
    n_tokens: int = 0
    """Until then."""


class _Process:
    """One life of the engine process."""

    def __init__(self, config: EngineConfig, on_events, on_end) -> None:
        context = multiprocessing.get_context("spawn")
        commands_out, self._commands = context.Pipe(duplex=False)
        self._events, events_in = context.Pipe(duplex=False)
        self._process = context.Process(
            target=run_process, args=(config, commands_out, events_in), name="slm-engine", daemon=True
        )
        self._process.start()
        # Our copies of the child's ends must go, or its death would never show as an end of file.
        commands_out.close()
        events_in.close()
        self._outbox: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._on_events, self._on_end = on_events, on_end
        threading.Thread(target=self._write, name="engine-commands", daemon=True).start()
        threading.Thread(target=self._read, name="engine-events", daemon=True).start()

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def send(self, command: Command) -> None:
        self._outbox.put(command)

    def _write(self) -> None:
        with contextlib.suppress(OSError):
            while (command := self._outbox.get()) is not None:
                self._commands.send(command)
        self._commands.close()

    def _read(self) -> None:
        connection: Connection = self._events
        with contextlib.suppress(EOFError, OSError):
            while True:
                self._on_events(self, connection.recv())
        self._on_end(self)

    def stop(self, timeout_s: float) -> int | None:
        """Ends the process, by force after the time; returns its exit code. Blocks."""
        self._outbox.put(Shutdown())
        self._outbox.put(None)
        self._process.join(timeout_s)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(5)
        return self._process.exitcode


class Supervisor:
    """Starts, feeds and restarts the engine. All methods belong to the event loop's thread."""

    def __init__(self, config: EngineConfig, *, max_waiting: int) -> None:
        self._config = config
        self._max_in_flight = config.slots + max_waiting
        self._tickets: dict[str, Ticket] = {}
        self._questions: dict[str, asyncio.Future[Answer]] = {}
        self._ids = itertools.count()
        self._process: _Process | None = None
        self._closing = False
        self._started: asyncio.Future[ModelInfo] | None = None
        self._restart_task: asyncio.Task[None] | None = None
        self._backoff_s = 0.0
        self._clocks: dict[str, _Clock] = {}
        self.totals = Totals()
        self.stats = Stats()
        self.ready = False
        self.n_restarts = 0
        self.info: ModelInfo | None = None

    # -- life ----------------------------------------------------------------------------------------------

    async def start(self) -> ModelInfo:
        """Starts the first engine and waits for it. Raises `UserError` when it cannot serve the model."""
        self._loop = asyncio.get_running_loop()
        self.info = await self._spawn()
        return self.info

    def _spawn(self) -> asyncio.Future[ModelInfo]:
        self._started = self._loop.create_future()
        self._process = _Process(
            self._config,
            on_events=lambda process, events: self._from_thread(self._dispatch, process, events),
            on_end=lambda process: self._from_thread(self._ended, process),
        )
        return self._started

    def _from_thread(self, function, *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
            self._loop.call_soon_threadsafe(function, *args)

    def _ended(self, process: _Process) -> None:
        if process is not self._process:
            return
        self.ready = False
        self.totals.preempted += self.stats.preempted
        self.stats = Stats()
        self._process = None
        exit_code = process.stop(1.0)
        assert self._started is not None
        if not self._started.done():
            self._started.set_exception(UserError(f"the engine process ended while loading ({exit_code})"))
        message = "The engine stopped while it worked on this request; try again."
        self._fail_all("engine_died", message)
        # A first start that fails is the caller's to tell; only an engine that has worked is started again.
        if not self._closing and self._restart_task is None and self.info is not None:
            print(f"the engine process ended ({exit_code}); starting another", file=sys.stderr, flush=True)
            self._restart_task = self._loop.create_task(self._restart())

    async def _restart(self) -> None:
        try:
            while not self._closing:
                await asyncio.sleep(self._backoff_s)
                self._backoff_s = min(max(2 * self._backoff_s, 0.5), _MAX_BACKOFF_S)
                self.n_restarts += 1
                began = time.perf_counter()
                try:
                    self.info = await self._spawn()
                except UserError as error:
                    print(f"the engine does not start: {error}", file=sys.stderr, flush=True)
                    continue
                if not self.ready:
                    continue  # it died again before we came to know that it was there
                took = time.perf_counter() - began
                print(f"the engine is back after {took:.1f} s", file=sys.stderr, flush=True)
                return
        finally:
            self._restart_task = None

    def _fail_all(self, code: str, message: str) -> None:
        for sequence_id, ticket in self._tickets.items():
            ticket.put(Failure(id=sequence_id, code=code, message=message))
        self._tickets.clear()
        self._clocks.clear()
        for question in self._questions.values():
            if not question.done():
                question.set_exception(EngineDownError(message))
        self._questions.clear()

    async def close(self, timeout_s: float = 5.0) -> None:
        """Ends the engine; what is in flight fails."""
        self._closing = True
        self.ready = False
        if self._restart_task is not None:
            self._restart_task.cancel()
        process, self._process = self._process, None
        if process is not None:
            await asyncio.to_thread(process.stop, timeout_s)
        self._fail_all("engine_died", "The server is shutting down.")

    # -- events --------------------------------------------------------------------------------------------

    def _dispatch(self, process: _Process, events: list[Event]) -> None:
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
        ticket = self._tickets.get(key)
        if ticket is None:
            return  # canceled while the event was on its way
        if isinstance(event, Delta):
            self._time(event)
        if isinstance(event, Prompted):
            self.totals.prompt_tokens += event.prompt_tokens
            self.totals.cached_tokens += event.cached_tokens
        elif isinstance(event, Failure) or event.finish:
            del self._tickets[key]
            self._clocks.pop(key, None)
            reason = event.code if isinstance(event, Failure) else event.finish
            self.totals.finished[reason] += 1
            self.totals.completion_tokens += 0 if isinstance(event, Failure) else event.completion_tokens
        ticket.put(event)

    def _time(self, event: Delta) -> None:
        clock, now = self._clocks[event.id], time.perf_counter()
        n = event.completion_tokens - clock.n_tokens
        if clock.last is None:
            if n:
                self.totals.ttft.observe(now - clock.submitted)
        elif n > 0:
            self.totals.itl.observe((now - clock.last) / n, n)
        clock.last, clock.n_tokens = now, event.completion_tokens
        if event.finish:
            self.totals.e2e.observe(now - clock.submitted)

    # -- requests ------------------------------------------------------------------------------------------

    @property
    def n_in_flight(self) -> int:
        """Sequences that run or wait."""
        return len(self._tickets)

    def next_id(self) -> str:
        """A new sequence id."""
        return f"s{next(self._ids)}"

    def submit(self, requests: Sequence[Generate]) -> Ticket:
        """Hands the sequences to the engine, all or none. Raises `QueueFullError` or `EngineDownError`."""
        if not self.ready or self._process is None:
            raise EngineDownError("The engine is starting; try again in a few seconds.")
        if len(self._tickets) + len(requests) > self._max_in_flight:
            raise QueueFullError(f"{len(self._tickets)} requests are running or waiting; try again later.")
        ticket = Ticket(self, [request.id for request in requests])
        for request in requests:
            self._tickets[request.id] = ticket
            self._clocks[request.id] = _Clock(time.perf_counter())
            self._process.send(request)
        return ticket

    def cancel(self, sequence_id: str) -> None:
        """Frees the slot of an unfinished sequence within a step of the engine."""
        if self._tickets.pop(sequence_id, None) is not None and self._process is not None:
            self._clocks.pop(sequence_id, None)
            self.totals.finished["canceled"] += 1
            self._process.send(Cancel(id=sequence_id))

    async def ask(self, question: Question) -> Answer:
        """The engine's answer. Raises `QueueFullError`, `EngineDownError` or `RequestFailedError`. Canceled, it
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
            self.totals.embedding_tokens += answer.n_tokens
        return answer
