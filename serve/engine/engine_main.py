"""The engine's process: native aborts stay in it, and the decode loop has a GIL of its own.

Tested in tests/serve/test_life.py, tests/serve/test_several_models.py.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time
from multiprocessing.connection import Connection

from slm.data.errors import UserError, one_line
from slm.serve.engine.config import EngineConfig
from slm.serve.engine.delta_buffer import DeltaBuffer
from slm.serve.engine.messages import Ready, Shutdown, StartFailed

_STATS_EVERY_S = 0.25
PROCESS_NAME = "slm-engine"
"""What ``ps`` and ``top`` show."""
_PR_SET_NAME = 15


def run_engine(config: EngineConfig, commands: Connection, events: Connection) -> None:
    """Target of the child process. Loads the model, sends ``Ready`` or ``StartFailed``, and works until a ``Shutdown``
    comes or the parent is gone."""
    # Ctrl-C reaches the whole terminal group; the parent decides when the engine ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _set_process_name(PROCESS_NAME)
    # When llama.cpp aborts, it starts a debugger where there is one. That takes seconds in which nobody is served.
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    from slm.llama.errors import LlamaError
    from slm.serve.engine.engine import Engine

    try:
        engine = Engine(config)
    except (UserError, LlamaError) as error:
        events.send([StartFailed(message=one_line(error))])
        return
    try:
        events.send([Ready(info=engine.info)])
        reported, reported_at = engine.stats, 0.0
        buffer = DeltaBuffer(config.stream_ms / 1000)
        # Made once: the connection's own poll() makes a new selector at every call, for a hundredth of a step's time.
        arrivals = select.poll()
        arrivals.register(commands.fileno(), select.POLLIN)
        while True:
            while not engine.busy or arrivals.poll(0):
                if not engine.busy and reported != engine.stats:
                    reported = engine.stats
                    events.send([reported])
                command = commands.recv()
                if isinstance(command, Shutdown):
                    return
                answer = engine.handle(command)
                if answer:
                    events.send(answer)
            out = engine.step()
            now = time.monotonic()
            if now - reported_at > _STATS_EVERY_S:
                reported, reported_at = engine.stats, now
                out.append(reported)
            buffer.add(out)
            if due := buffer.take_due(now):
                events.send(due)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the parent is gone
    finally:
        engine.close()


def _set_process_name(name: str) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)
