"""The engine as a process: how commands reach it, its loop, and how events leave it. Native aborts stay in it, and the
decode loop has its own GIL.

Tested in tests/serve/engine/test_intake.py, tests/serve/engine/test_delta_buffer.py, tests/serve/test_life.py.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from slm.data.errors import UserError, one_line
from slm.serve.engine.config import EngineConfig
from slm.serve.engine.protocol import (
    Accepted,
    Cancel,
    Canceled,
    Command,
    Delta,
    Detokenize,
    Event,
    Failure,
    Generate,
    Ready,
    Shutdown,
    StartFailed,
    Tokenize,
)

if TYPE_CHECKING:
    from slm.serve.engine.engine import Engine

REPORT_S = 0.25
"""The server gets a report of the engine's state so often, whatever a step takes."""
_COMMANDS_PART = 0.25
"""Before a step, commands may take so much of the time of the step before, ..."""
_COMMANDS_S = (0.002, 0.02)
"""... at least and at most this many seconds: streams wait for them."""
GIL_S = 0.001
"""How long a thread that runs Python may keep the others of its process waiting: with Python's 5 ms, each call of
llama.cpp or of the system that the loop makes meanwhile may end so much later."""
PROCESS_NAME = "slm-engine"
"""What ``ps`` and ``top`` show."""
_PR_SET_NAME = 15

_USUAL = 65_536
"""Characters of a prompt that is tokenized at once: some milliseconds."""
_RESTS = 3.0
"""While sequences run, the second thread rests this many times as long as it has worked, ..."""
_LEAST_REST_S, _MOST_REST_S = 0.01, 0.05
"""... at least and at most this many seconds. A query takes 0.7 ms here and another 1.8 ms of the server's process, on
cores that the streams' next tokens need (processor time of an EPYC, Zen 4, for 200 words)."""
_NICE = 5

_REPLY, _QUERY, _END = 0, 1, 2
"""The order of the second thread's work: first what a reply waits for, then what clients ask of the vocabulary."""

Job = Generate | Tokenize | Detokenize


def run_engine(config: EngineConfig, commands: Connection, events: Connection) -> None:
    """Target of the child process. Loads the model, sends ``Ready`` or ``StartFailed``, and works until a ``Shutdown``
    comes or the parent is gone."""
    # Ctrl-C reaches the whole terminal group; the parent decides when the engine ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _set_process_name(PROCESS_NAME)
    sys.setswitchinterval(GIL_S)
    # When llama.cpp aborts, it starts a debugger where there is one. This takes seconds in which nobody is served.
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    from slm.llama.errors import LlamaError
    from slm.serve.engine.engine import Engine

    outbox = _Outbox(events)
    try:
        engine = Engine(config)
    except (UserError, LlamaError) as error:
        outbox.send([StartFailed(message=one_line(error))])
        return
    ended = threading.Event()
    intake = Intake(engine, commands, outbox.send)
    reports = threading.Thread(target=_report, args=(engine, outbox, ended), daemon=True, name="reports")
    try:
        outbox.send([Ready(info=engine.info)])
        engine.warm()
        reports.start()
        _loop(engine, intake.commands, outbox, DeltaBuffer(config.stream_ms / 1000))
    except OSError:
        pass  # the parent is gone
    finally:
        ended.set()
        intake.close()
        engine.close()


def _loop(engine: Engine, commands: queue.SimpleQueue[Command], outbox: _Outbox, buffer: DeltaBuffer) -> None:
    """Takes commands and computes steps until a ``Shutdown``. Raises ``OSError`` when the server is gone."""
    reported, step_s = engine.stats, 0.0
    while True:
        until = time.monotonic() + min(max(_COMMANDS_PART * step_s, _COMMANDS_S[0]), _COMMANDS_S[1])
        out: list[Event] = []
        while True:
            idle = not engine.busy
            if idle:
                if out:
                    outbox.send(out)
                    out = []
                if reported != engine.stats:
                    reported = engine.stats
                    outbox.send([reported])
            try:
                command = commands.get(block=idle)
            except queue.Empty:
                break
            if idle:
                until = time.monotonic() + _COMMANDS_S[0]
            if isinstance(command, Shutdown):
                return
            out += engine.handle(command, prepared=True)
            if engine.busy and time.monotonic() > until:
                break
        began = time.monotonic()
        out += engine.step()
        now = time.monotonic()
        step_s = now - began
        buffer.add(out)
        if due := buffer.take_due(now):
            outbox.send(due)


def _report(engine: Engine, outbox: _Outbox, ended: threading.Event) -> None:
    """From a thread, so that a step of many seconds is told from an engine that has stopped."""
    with contextlib.suppress(OSError):
        while not ended.wait(REPORT_S):
            outbox.send([engine.stats])


def _set_process_name(name: str) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


class Intake:
    """Reads commands while the engine computes, and does what needs no step of it: texts become tokens, prompts that
    are too long are refused, and queries of the vocabulary are answered.

    Two threads. One reads the pipe and tokenizes prompts of usual length. The other tokenizes long prompts and answers
    queries, and leaves the cores to running streams: after each piece of work it rests a while. What a reply waits for
    comes before queries of clients, of which any number may stand in line.

    ``commands`` has what the engine's loop has to handle. ``send`` takes events from any thread.
    """

    def __init__(self, engine: Engine, pipe: Connection, send: Callable[[list[Event]], None]) -> None:
        self.commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._engine, self._pipe, self._send = engine, pipe, send
        self._jobs: queue.PriorityQueue[tuple[int, int, Job | None]] = queue.PriorityQueue()
        """Each with its rank, and a number by which those of a rank stay in order."""
        self._n_jobs = itertools.count()
        self._waiting: set[str] = set()
        """Ids of the jobs that have not been canceled."""
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._in_use = threading.Lock(), threading.Lock()
        """Held by the two threads while they use the engine."""
        for work in (self._read, self._work):
            threading.Thread(target=self._guarded, args=(work,), daemon=True, name="intake").start()

    def close(self) -> None:
        """After it, no thread uses the engine."""
        self._closed.set()
        self._put(_END, None)
        for each in self._in_use:
            with each:
                pass

    def _guarded(self, work: Callable[[], None]) -> None:
        """Ends the engine's loop with the pipe, and when a thread fails."""
        try:
            with contextlib.suppress(EOFError, OSError):
                work()
        finally:
            self.commands.put(Shutdown())

    def _read(self) -> None:
        while True:
            command = self._pipe.recv()
            match command:
                case Shutdown():
                    return
                case Generate() if len(command.prompt) <= _USUAL:
                    with self._in_use[0]:
                        self._prepare(command)
                case Tokenize() if _counts(command) and len(command.text) <= _USUAL:
                    with self._in_use[0]:
                        self._answer(command)
                case Generate() | Tokenize() | Detokenize():
                    with self._lock:
                        self._waiting.add(command.id)
                    self._put(_REPLY if isinstance(command, Generate) or _counts(command) else _QUERY, command)
                case Cancel() if self._forget(command.id):
                    self._send([Canceled(id=command.id)])
                case _:
                    self.commands.put(command)

    def _work(self) -> None:
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while (job := self._jobs.get()[2]) is not None:
            if job.id not in self._waiting:
                continue
            began = time.monotonic()
            with self._in_use[1]:
                self._do(job)
            if self._engine.stats.running:
                rest_s = _RESTS * (time.monotonic() - began)
                self._closed.wait(min(max(rest_s, _LEAST_REST_S), _MOST_REST_S))

    def _do(self, job: Job) -> None:
        if isinstance(job, Generate):
            self._prepare(job, forgettable=True)
        else:
            self._answer(job, forgettable=True)

    def _put(self, rank: int, job: Job | None) -> None:
        self._jobs.put((rank, next(self._n_jobs), job))

    def _answer(self, query: Tokenize | Detokenize, *, forgettable: bool = False) -> None:
        if self._closed.is_set():
            return
        answer = self._engine.answer(query)
        if not forgettable or self._forget(query.id):
            self._send([answer])

    def _prepare(self, request: Generate, *, forgettable: bool = False) -> None:
        if self._closed.is_set():
            return
        prepared = self._engine.prepare(request)
        if forgettable and not self._forget(request.id):
            return
        if isinstance(prepared, Failure):
            self._send([prepared])
            return
        # Before the loop can send anything of it.
        self._send([Accepted(id=request.id, prompt_tokens=len(prepared.prompt))])
        self.commands.put(prepared)

    def _forget(self, job_id: str) -> bool:
        """Whether it was still waiting; from now on it is not."""
        with self._lock:
            waited = job_id in self._waiting
            self._waiting.discard(job_id)
            return waited


def _counts(query: Generate | Tokenize | Detokenize) -> bool:
    """Whether a reply waits for the number of these tokens."""
    return isinstance(query, Tokenize) and query.limit is not None


class DeltaBuffer:
    """Events in order. New text of a sequence is added to the text that is already held of it, so that several steps
    make one message.

    With one stream a token takes 3 ms, and carrying it to the client takes a third of that again, on a core that the
    next token needs. Nobody reads that fast: text goes out some tens of times a second, everything else at once.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._events: list[Event] = []
        self._deltas: dict[str, tuple[int, Delta]] = {}
        """Sequence id -> the index of its delta in the events, and the delta."""
        self._urgent = False
        self._flushed_at = -float("inf")

    def add(self, events: list[Event]) -> None:
        """Takes the events of a step."""
        for event in events:
            # The first text comes together with PrefillDone, and the last has a finish: both go out at once.
            if not isinstance(event, Delta):
                self._urgent = True
                self._events.append(event)
                continue
            self._urgent = self._urgent or event.finish is not None
            index, delta = len(self._events), event
            if event.id in self._deltas:
                index, held = self._deltas[event.id]
                delta = replace(
                    event,
                    text=held.text + event.text,
                    logprobs=held.logprobs + event.logprobs,
                    tokens=held.tokens + event.tokens,
                )
                self._events[index] = delta
            else:
                self._events.append(delta)
            self._deltas[event.id] = index, delta

    def take_due(self, now: float) -> list[Event]:
        """The events that are due at this time (seconds of any clock); none while they can wait."""
        if not self._events or not (self._urgent or now - self._flushed_at >= self._interval_s):
            return []
        events, self._events = self._events, []
        self._deltas.clear()
        self._urgent, self._flushed_at = False, now
        return events


class _Outbox:
    """Events on their way to the server, from any thread."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe, self._lock = pipe, threading.Lock()

    def send(self, events: list[Event]) -> None:
        """Raises ``OSError`` when the server is gone."""
        with self._lock:
            self._pipe.send(events)
