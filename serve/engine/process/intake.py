"""Reads commands while the engine computes, and does what needs no step of it: texts become tokens, prompts that are
too long are refused, and queries of the vocabulary are answered.

Two threads. One reads the pipe and tokenizes prompts of usual length. The other tokenizes long prompts and answers
queries, and leaves the cores to running streams: after each piece of work it rests a while. What a reply waits for
comes before queries of clients, of which any number may stand in line.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

from slm.serve.engine.engine import Engine
from slm.serve.engine.protocol import (
    Accepted,
    Cancel,
    Canceled,
    Command,
    Detokenize,
    Event,
    Failure,
    Generate,
    Shutdown,
    Tokenize,
)

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


class Intake:
    """``commands`` has what the engine's loop has to handle. ``send`` takes events from any thread."""

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
