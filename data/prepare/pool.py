"""Steps for all shards by several processes: each takes the next shard that is missing, and says how far it is.

Tested in tests/data/prepare/test_prepare.py.
"""

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

from slm.data.errors import UserError
from slm.data.prepare.work import Step, Work
from slm.data.stream.loader import death_of, without_interrupts
from slm.data.stream.worker import exit_with_parent

LOOK_SECONDS = 1.0
"""Between two looks at the processes, and between two reports of one."""


def do(work: Work, step: Step, n_processes: int, note: Callable[[float, int], None]) -> None:
    """Do a step for the shards for which it is not done. ``note`` is told the bytes of text and the number of shards
    that are done, at least every second.

    UserError with the first error of a process; what is made stays.
    """
    missing = work.missing(step)
    n_done = len(work.shards) - len(missing)
    done = float(sum(each.bytes for each in work.shards) - sum(work.shards[each].bytes for each in missing))
    queue = list(reversed(missing))
    arguments = pickle.dumps(work)
    processes = [_Process(arguments, step) for _ in range(min(n_processes, len(queue)))]
    try:
        for each in processes:
            each.take(queue.pop())
        while busy := {each.connection: each for each in processes if each.shard is not None}:
            for connection in wait(list(busy), timeout=LOOK_SECONDS):
                process = busy[connection]  # type: ignore[index]  # only connections are waited for
                finished = process.receive()
                if finished is not None:
                    n_done, done = n_done + 1, done + work.shards[finished].bytes
                    if queue:
                        process.take(queue.pop())
            part = sum(min(each.chars, work.shards[each.shard].bytes) for each in processes if each.shard is not None)
            note(done + part, n_done)
    finally:
        for each in processes:
            each.close()


class _Process:
    """A process that takes one shard after the other."""

    def __init__(self, arguments: bytes, step: Step) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=main, args=(arguments, step, theirs), name="prepare", daemon=True)
        with without_interrupts():
            self._process.start()
        theirs.close()
        self.shard: int | None = None
        self.chars = 0
        """Characters that it has read of its shard."""

    def take(self, shard: int) -> None:
        self.shard, self.chars = shard, 0
        self.connection.send(shard)

    def receive(self) -> int | None:
        """Read one message. Returns the shard that is finished, if one is."""
        try:
            kind, content = self.connection.recv()
        except (EOFError, ConnectionResetError):
            advice = "type the same command again with fewer processes=, it goes on"
            raise death_of(self._process, "a process", advice) from None
        if kind == "user_error":
            raise UserError(content)
        if kind == "error":
            raise RuntimeError(f"a process failed:\n{content}")
        if kind == "chars":
            self.chars = content
            return None
        finished, self.shard = self.shard, None
        return finished

    def close(self) -> None:
        self._process.kill()  # what it has not finished is a temporary file
        self._process.join()
        self.connection.close()
        self._process.close()


def main(arguments: bytes, step: Step, connection: Connection) -> None:
    """Do a step for the shards that come, until the parent ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the parent ends this process
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"):
        os.environ[name] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=exit_with_parent, daemon=True).start()
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        _serve(arguments, step, connection)
    sys.stderr.flush()
    os._exit(0)


def _serve(arguments: bytes, step: Step, connection: Connection) -> Any:
    shown = time.monotonic()

    def note(chars: int) -> None:
        nonlocal shown
        if (now := time.monotonic()) - shown > LOOK_SECONDS:
            shown = now
            connection.send(("chars", chars))

    try:
        from slm.data.prepare.repeated import make_signatures
        from slm.data.prepare.shard import make_shard

        work = pickle.loads(arguments)
        make = make_signatures if step == "signatures" else make_shard
        while True:
            make(work, connection.recv(), note)
            connection.send(("made", None))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        raise
    except UserError as error:
        connection.send(("user_error", str(error)))
    except BaseException:
        connection.send(("error", traceback.format_exc()))
