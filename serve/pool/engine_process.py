"""One engine process, from start to exit, and the two threads that carry messages to it and from it.

Engines are forked from a process that has imported their libraries (see ``preload``), or started from nothing.

Tested in tests/serve/pool/test_engine_client.py, tests/serve/test_reliability_deaths.py.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import queue
import sys
import threading
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, SpawnContext

from slm.serve.engine.config import EngineConfig
from slm.serve.engine.process import run_engine
from slm.serve.engine.protocol import Command, Event, Shutdown

_PRELOADED = ["slm.serve.__main__", "slm.serve.engine.engine"]
_preloading = False


def preload() -> None:
    """Starts a process that imports the engine's libraries while this one reads the configuration.

    Every engine is then forked from it, also one that replaces an engine that has died. Engines get the environment
    variables that this process has now, so set what they need before.
    """
    global _preloading
    # On other systems it is not safe to fork a process that has used system libraries.
    if sys.platform == "linux":
        multiprocessing.set_forkserver_preload(_PRELOADED)
        forkserver.ensure_running()
        _preloading = True


class EngineProcess:
    """A started process.

    ``on_events`` is called with each list of events, ``on_end`` once, when the process has closed its end of the
    pipe. Both get this object and are called from another thread.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        on_events: Callable[[EngineProcess, list[Event]], None],
        on_end: Callable[[EngineProcess], None],
    ) -> None:
        context: ForkServerContext | SpawnContext
        context = multiprocessing.get_context("forkserver") if _preloading else multiprocessing.get_context("spawn")
        commands_out, self._command_pipe = context.Pipe(duplex=False)
        self._event_pipe, events_in = context.Pipe(duplex=False)
        self._process = context.Process(
            target=run_engine, args=(config, commands_out, events_in), name="slm-engine", daemon=True
        )
        self._process.start()
        # While this process holds copies of the child's ends, the child's death would not be an end of file.
        commands_out.close()
        events_in.close()
        self._to_send: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._on_events, self._on_end = on_events, on_end
        try:
            threading.Thread(target=self._write, name="engine-commands", daemon=True).start()
            threading.Thread(target=self._read, name="engine-events", daemon=True).start()
        except RuntimeError:  # there is no thread to be had
            self._to_send.put(None)
            self._process.kill()
            raise

    def send(self, command: Command) -> None:
        """Queues a command; never blocks."""
        self._to_send.put(command)

    def _write(self) -> None:
        with contextlib.suppress(OSError):
            while (command := self._to_send.get()) is not None:
                self._command_pipe.send(command)
        self._command_pipe.close()

    def _read(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                self._on_events(self, self._event_pipe.recv())
        self._on_end(self)

    def stop(self, timeout_s: float) -> int | None:
        """Ends the process and returns its exit code. Blocks; kills the process after ``timeout_s`` seconds."""
        self._to_send.put(Shutdown())
        self._to_send.put(None)
        self._process.join(timeout_s)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(5)
        return self._process.exitcode
