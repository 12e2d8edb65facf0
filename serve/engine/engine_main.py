"""The engine's process: native aborts stay in here, and the decode loop has a GIL of its own."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time
from multiprocessing.connection import Connection

from data.errors import UserError
from serve.engine.config import EngineConfig
from serve.engine.delta_buffer import Outbox
from serve.engine.messages import Ready, Shutdown, StartFailed

_STATS_EVERY_S = 0.25
PROCESS_NAME = "slm-engine"
"""What ``ps`` and ``top`` show."""
_PR_SET_NAME = 15


def run_process(config: EngineConfig, commands: Connection, events: Connection) -> None:
    """Target of the child process: loads the model, says so, and works until told to end or left alone."""
    # Ctrl-C reaches the whole terminal group; the parent decides when the engine ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _call_it(PROCESS_NAME)
    # llama.cpp calls for a debugger when it aborts, where there is one: seconds in which nobody is served.
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    from serve.engine.engine import Engine
    from slm.llama.errors import LlamaError

    try:
        engine = Engine(config)
    except (UserError, LlamaError) as error:
        events.send([StartFailed(message=" ".join(str(error).split()))])
        return
    try:
        events.send([Ready(info=engine.info)])
        told, told_at = engine.stats, 0.0
        outbox = Outbox(config.stream_ms / 1000)
        # Made once: the connection's own poll() makes another selector at every call, a hundredth of a step.
        arrivals = select.poll()
        arrivals.register(commands.fileno(), select.POLLIN)
        while True:
            while not engine.busy or arrivals.poll(0):
                if not engine.busy and told != engine.stats:
                    told = engine.stats
                    events.send([told])
                command = commands.recv()
                if isinstance(command, Shutdown):
                    return
                answer = engine.handle(command)
                if answer:
                    events.send(answer)
            out = engine.step()
            now = time.monotonic()
            if now - told_at > _STATS_EVERY_S:
                told, told_at = engine.stats, now
                out.append(told)
            outbox.add(out)
            if due := outbox.due(now):
                events.send(due)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the parent is gone
    finally:
        engine.close()


def _call_it(name: str) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)
