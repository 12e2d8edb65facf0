"""One life of the engine process, and the two threads that carry messages to it and from it.

Engines are forked from a process that has their libraries imported (``preload``), or started from nothing.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import queue
import sys
import threading
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.connection import Connection

from serve.engine.config import EngineConfig
from serve.engine.engine_main import run_process
from serve.engine.messages import Command, Event, Shutdown

_PRELOADED = ["serve.__main__", "serve.engine.engine"]
_preloading = False


def preload() -> None:
    """Begins to import the engine's libraries in a process of its own, so that this is done when the configuration
    is read, and need not be done again when an engine is started after another has died.

    The environment of engines is this process's at this moment: what they are to see must be set before.
    """
    global _preloading
    # Elsewhere, forking a process that has used system libraries is not safe.
    if sys.platform == "linux":
        multiprocessing.set_forkserver_preload(_PRELOADED)
        forkserver.ensure_running()
        _preloading = True


class EngineProcess:
    """A started process. ``on_events`` and ``on_end`` are called with it from another thread, the latter once."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        on_events: Callable[[EngineProcess, list[Event]], None],
        on_end: Callable[[EngineProcess], None],
    ) -> None:
        context = multiprocessing.get_context("forkserver" if _preloading else "spawn")
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
        """The process's number."""
        return self._process.pid

    def send(self, command: Command) -> None:
        """Puts a command on its way; never blocks."""
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
