"""The server's side of one engine: sends requests to its process, hands out its events, and replaces it when it dies.

The client lives on the server's asyncio loop. Two threads per process move the messages, and a process is waited
for in a thread, so neither a long prompt, nor a step of the engine, nor a slow exit can block the loop. When the
process dies, the requests in flight fail and a new process is started; until it is there, ``ready`` is False.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import time
from collections.abc import Sequence

from slm.data.errors import UserError, one_line
from slm.serve.engine.config import EngineConfig
from slm.serve.engine.protocol import (
    Accepted,
    Cancel,
    Canceled,
    Delta,
    Embeddings,
    Event,
    Failure,
    FailureCode,
    Generate,
    ModelInfo,
    PrefillDone,
    PrefillProgress,
    Query,
    QueryResult,
    Ready,
    Reply,
    SequenceEvent,
    StartFailed,
    Stats,
)
from slm.serve.pool.counters import Counters, SequenceTimes
from slm.serve.pool.engine_process import EngineProcess
from slm.serve.pool.request_stream import (
    EngineDownError,
    QueueFullError,
    RequestFailedError,
    RequestStream,
    TooManySequencesError,
)

_SILENT_S = 3.0
"""An engine without a report for this many seconds hangs: it reports four times a second."""
_STEP_S = 60.0
"""An engine also hangs if a step takes this many seconds. Steps are bounded to about a second; pages of the file that a
slow disk has to read take longer."""
_MAX_BACKOFF_S = 5.0
_EXIT_S = 1.0
"""How long a process that has closed its pipe may take to exit, before it is killed."""


class EngineClient:
    """Starts, feeds and restarts the engine. All methods belong to the event loop's thread.

    ``max_waiting``: sequences that may wait for a slot. ``name``: the model's, for messages where there are several.
    """

    def __init__(
        self, config: EngineConfig, *, max_waiting: int, counters: Counters | None = None, name: str = ""
    ) -> None:
        self._config = config
        self._of_model = f" of {name}" if name else ""
        self._max_in_flight = config.slots + max_waiting
        self._streams: dict[str, RequestStream] = {}
        self._queries: dict[str, asyncio.Future[QueryResult]] = {}
        self._ids = itertools.count()
        self._process: EngineProcess | None = None
        self._closing = False
        self._started: asyncio.Future[ModelInfo] | None = None
        self._exit_task: asyncio.Task[int | None] | None = None
        """Waits for the newest process that has ended; its result is the exit code."""
        self._restart_task: asyncio.Task[None] | None = None
        self._backoff_s = 0.0
        self._leaving: set[str] = set()
        """Sequences and queries that are canceled, and that the engine does not know of yet."""
        self._loaded = False
        self._heard = time.monotonic()
        """When the engine's newest message came."""
        self._watch_task: asyncio.Task[None] | None = None
        self._times: dict[str, SequenceTimes] = {}
        self.counters = counters if counters is not None else Counters()
        self.stats = Stats()
        self.info: ModelInfo | None = None

    @property
    def ready(self) -> bool:
        """Whether an engine is there that takes requests."""
        return self._loaded and not self.hangs

    @property
    def hangs(self) -> bool:
        """Whether the engine is there and does not answer: its process is stopped, or a step of it does not end."""
        if not self._loaded:
            return False
        silent_s = time.monotonic() - self._heard
        return silent_s > _SILENT_S or self.stats.step_s + silent_s > _STEP_S

    async def _watch(self) -> None:
        """Says when the engine begins to hang and when that ends."""
        hung = False
        while True:
            await asyncio.sleep(1.0)
            if self.hangs != hung:
                hung = not hung
                does = "does not answer; requests get 503 until it does" if hung else "answers again"
                self._log(f"the engine{self._of_model} {does}")

    # -- start and end -------------------------------------------------------------------------------------

    async def start(self) -> ModelInfo:
        """Starts the first engine and waits for it. Raises ``UserError`` when it cannot serve the model."""
        self._loop = asyncio.get_running_loop()
        self.info = await self._spawn()
        self._watch_task = self._loop.create_task(self._watch())
        self.counters.loads += 1
        return self.info

    def _spawn(self) -> asyncio.Future[ModelInfo]:
        self._started = self._loop.create_future()
        self._process = EngineProcess(
            self._config,
            on_events=self._receive,
            on_end=lambda process: self._from_thread(self._ended, process),
        )
        return self._started

    def _receive(self, process: EngineProcess, events: list[Event]) -> None:
        """Called in the thread that reads: a busy loop of the server is no silence of the engine."""
        self._heard = time.monotonic()
        self._from_thread(self._dispatch, process, events)

    def _from_thread(self, function, *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be notified
            self._loop.call_soon_threadsafe(function, *args)

    def _ended(self, process: EngineProcess) -> None:
        """Called when the process has closed its end of the pipe."""
        if process is not self._process:
            return
        self._loaded = False
        self._keep_stats()
        self._process = None
        assert self._started is not None
        self._exit_task = self._loop.create_task(self._wait_for_exit(process, self._started))
        self._fail_all("engine_died", "The engine stopped while it worked on this request; try again.")
        # The caller of ``start`` reports a first start that fails; only an engine that has worked is replaced.
        if not self._closing and self._restart_task is None and self.info is not None:
            self._restart_task = self._loop.create_task(self._restart(self._exit_task))

    async def _wait_for_exit(self, process: EngineProcess, started: asyncio.Future[ModelInfo]) -> int | None:
        exit_code = await asyncio.to_thread(process.stop, _EXIT_S)
        if not started.done() and not self._closing:
            started.set_exception(UserError(f"the engine process ended while loading ({exit_code})"))
        return exit_code

    async def _restart(self, exit_task: asyncio.Task[int | None]) -> None:
        try:
            # Shielded: ``close`` cancels the restart, not the wait for the old process.
            self._log(f"the engine process{self._of_model} ended ({await asyncio.shield(exit_task)}); starting another")
            while not self._closing:
                await asyncio.sleep(self._backoff_s)
                self._backoff_s = min(max(2 * self._backoff_s, 0.5), _MAX_BACKOFF_S)
                if self._exit_task is not None:
                    await asyncio.shield(self._exit_task)  # there is memory for one engine, not for two
                self.counters.restarts += 1
                began = time.perf_counter()
                try:
                    self.info = await self._spawn()
                except (UserError, OSError, EOFError, RuntimeError, MemoryError) as error:
                    # Also where there is no process, thread or memory to be had now.
                    self._log(f"the engine{self._of_model} does not start: {one_line(error)}")
                    continue
                if not self.ready:
                    continue  # it died again before this task ran
                self._log(f"the engine{self._of_model} is back after {time.perf_counter() - began:.1f} s")
                return
        finally:
            self._restart_task = None

    def _log(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def _keep_stats(self) -> None:
        self.counters.preempted += self.stats.preempted
        self.stats = Stats()

    def _fail_all(self, code: FailureCode, message: str) -> None:
        for sequence_id, stream in self._streams.items():
            stream.put(Failure(id=sequence_id, code=code, message=message))
            self.counters.finished[code] += 1
        self._streams.clear()
        self._times.clear()
        self._leaving.clear()
        for pending in self._queries.values():
            if not pending.done():
                pending.set_exception(EngineDownError(message))
        self._queries.clear()

    async def close(self, timeout_s: float = 5.0) -> None:
        """Ends the engine; requests in flight fail."""
        self._closing = True
        self._loaded = False
        self._keep_stats()
        for task in (self._restart_task, self._watch_task):
            if task is not None:
                task.cancel()
        process, self._process = self._process, None
        if process is not None:
            await asyncio.to_thread(process.stop, timeout_s)
        if self._exit_task is not None:
            await self._exit_task
        self._fail_all("engine_died", "The server is shutting down.")

    # -- events --------------------------------------------------------------------------------------------

    def _dispatch(self, process: EngineProcess, events: list[Event]) -> None:
        if process is not self._process:
            return
        assert self._started is not None
        for event in events:
            match event:
                case Ready(info=info):
                    self._loaded = True
                    self._started.set_result(info)
                case Stats():
                    self.stats = event
                case StartFailed(message=message):
                    self._started.set_exception(UserError(message))
                case Reply(id=key, value=value):
                    pending = self._queries.pop(key, None)
                    if pending is not None and not pending.done():
                        pending.set_result(value)
                case Failure(id=key) if key in self._queries:
                    pending = self._queries.pop(key)
                    if not pending.done():
                        pending.set_exception(RequestFailedError(event))
                case Canceled(id=key):
                    self._leaving.discard(key)
                case Accepted(id=key) | PrefillProgress(id=key) | PrefillDone(id=key) | Delta(id=key) | Failure(id=key):
                    # The engine works: the next restart need not wait.
                    self._backoff_s = 0.0
                    self._deliver(key, event)

    def _deliver(self, key: str, event: Accepted | SequenceEvent | Failure) -> None:
        stream = self._streams.get(key)
        if stream is None:
            return  # cancelled while the event was on its way
        if isinstance(event, Delta):
            self.counters.observe(self._times[event.id], event)
        if isinstance(event, PrefillDone):
            self.counters.prompt_tokens += event.prompt_tokens
            self.counters.cached_tokens += event.cached_tokens
            self.counters.prefill_s += event.prefill_s
        elif isinstance(event, Failure) or (isinstance(event, Delta) and event.finish):
            del self._streams[key]
            self._times.pop(key, None)
            if isinstance(event, Failure):
                self.counters.finished[event.code] += 1
            elif event.finish:
                self.counters.finished[event.finish] += 1
                self.counters.completion_tokens += event.completion_tokens
                self.counters.decode_s += event.decode_s
                self.counters.drafted_tokens += event.drafted_tokens
                self.counters.accepted_tokens += event.accepted_tokens
        stream.put(event)

    # -- requests ------------------------------------------------------------------------------------------

    @property
    def n_in_flight(self) -> int:
        """Sequences that run or wait, and canceled ones that the engine has not left yet."""
        return len(self._streams) + len(self._leaving)

    def next_id(self) -> str:
        """A new sequence id."""
        return f"s{next(self._ids)}"

    def submit(self, requests: Sequence[Generate]) -> RequestStream:
        """Hands the sequences to the engine, all or none.

        Raises ``QueueFullError`` or ``EngineDownError``, and ``TooManySequencesError`` where waiting would not help.
        """
        process = self._running()
        if len(requests) > self._max_in_flight:
            raise TooManySequencesError(
                f"n times the number of prompts is {len(requests)}; this server takes at most {self._max_in_flight} at "
                "a time (serve.slots + serve.queue)."
            )
        # What is canceled takes its place until the engine has read that: clients that come and go cannot pile up work.
        if self.n_in_flight + len(requests) > self._max_in_flight:
            raise QueueFullError(f"{self.n_in_flight} requests are running or waiting; try again later.")
        stream = RequestStream([request.id for request in requests], self.cancel)
        for request in requests:
            self._streams[request.id] = stream
            self._times[request.id] = SequenceTimes(time.perf_counter())
            process.send(request)
        return stream

    def cancel(self, sequence_id: str) -> None:
        """Frees the slot of an unfinished sequence within a step of the engine."""
        if self._streams.pop(sequence_id, None) is not None and self._process is not None:
            self._times.pop(sequence_id, None)
            self.counters.finished["canceled"] += 1
            self._leave(sequence_id)

    def _leave(self, key: str) -> None:
        assert self._process is not None
        self._leaving.add(key)
        self._process.send(Cancel(id=key))

    def _running(self) -> EngineProcess:
        if not self._loaded or self._process is None:
            raise EngineDownError("The engine is starting; try again in a few seconds.")
        if self.hangs:
            raise EngineDownError("The engine does not answer at the moment; try again in a few seconds.")
        return self._process

    async def query(self, query: Query) -> QueryResult:
        """The engine's answer. Cancelling the call cancels the engine's work.

        Raises ``QueueFullError``, ``EngineDownError`` or ``RequestFailedError``.
        """
        process = self._running()
        if len(self._queries) + len(self._leaving) >= self._max_in_flight:
            raise QueueFullError(f"{len(self._queries)} requests are waiting for an answer; try again later.")
        future = self._queries[query.id] = self._loop.create_future()
        process.send(query)
        try:
            answer = await future
        finally:
            if self._queries.pop(query.id, None) is not None and self._process is not None:
                self._leave(query.id)
        if isinstance(answer, Embeddings):
            self.counters.embedding_tokens += answer.n_tokens
        return answer
