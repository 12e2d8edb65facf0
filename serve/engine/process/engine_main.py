"""The engine's process: native aborts stay in it, and the decode loop has its own GIL.

Tested in tests/serve/test_life.py, tests/serve/test_several_models.py, tests/serve/engine/process/test_intake.py.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from slm.data.errors import UserError, one_line
from slm.serve.engine.config import EngineConfig
from slm.serve.engine.process.delta_buffer import DeltaBuffer
from slm.serve.engine.protocol import Command, Event, Ready, Shutdown, StartFailed

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


class _Outbox:
    """Events on their way to the server, from any thread."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe, self._lock = pipe, threading.Lock()

    def send(self, events: list[Event]) -> None:
        """Raises ``OSError`` when the server is gone."""
        with self._lock:
            self._pipe.send(events)


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
    from slm.serve.engine.process.intake import Intake

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
