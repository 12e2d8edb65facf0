"""Child processes with native code that may die: tried, watched, and not left behind; and functions called in one, so
that memory, threads and settings are gone afterwards.

Tested in tests/slm/machine/test_crashes.py, tests/slm/machine/test_fresh_process.py.
"""

import ctypes
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from multiprocessing import get_context
from multiprocessing.connection import Connection
from time import monotonic
from typing import TypeVar

import slm

Result = TypeVar("Result")


_WAITING_S = 15.0


class DiedError(Exception):
    """The process ended without an answer: killed, for want of memory say, or crashed."""


def in_fresh_process(
    function: Callable[..., Result], *arguments: object, waiting: Callable[[int, float], None] | None = None
) -> Result:
    """``function(*arguments)``, computed there; its exceptions are raised here. DiedError where there is no answer.

    The process is killed if the caller is interrupted: it may be in native code for long, or still importing.
    ``waiting``: called at the start, and every ``_WAITING_S`` seconds without an answer, with the process's id and the
    seconds so far.
    """
    context = get_context("spawn")
    reads, writes = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(writes, function, arguments))
    process.start()
    writes.close()
    began = monotonic()
    try:
        while waiting:
            assert process.pid is not None
            waiting(process.pid, monotonic() - began)
            if reads.poll(_WAITING_S):
                break
        returned, value = reads.recv()
    except EOFError:
        raise DiedError(f"the process of {function.__name__} was killed or crashed") from None
    except BaseException:
        process.kill()
        raise
    finally:
        process.join()
        reads.close()
    if not returned:
        raise value
    return value


def _answer(writes: Connection, function: Callable[..., object], arguments: tuple[object, ...]) -> None:
    """Send (whether ``function`` returned, its result or its exception)."""
    try:
        answer = True, function(*arguments)
    except Exception as error:
        answer = False, error
    writes.send(answer)


_TRIAL_S = 120
"""Seconds are usual. A machine that takes longer than this is busy with other work."""

CRASHES = ("SIGSEGV", "SIGILL", "SIGBUS", "SIGFPE", "SIGABRT", "SIGTRAP")
"""Signals that native code dies of by its own doing. Others come from outside and say nothing about the code."""


def ended_by(status: int) -> str | None:
    """The name of the signal that ended a process of exit status ``status`` (as subprocess gives it), or None."""
    try:
        return signal.Signals(-status).name
    except ValueError:
        return None


def run_trial(
    module: str, *arguments: str, environment: Mapping[str, str] | None = None, seconds: float = _TRIAL_S
) -> "subprocess.CompletedProcess[bytes]":
    """``python -m module arguments`` in its own process, with what it printed.

    OSError or subprocess.SubprocessError where it did not come to its end within ``seconds``.
    """
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=seconds,
        cwd=slm.PARENT,
    )


def end_with_parent(number: int) -> None:
    """Let the kernel send this process the signal ``number`` when its parent is ended (Linux; elsewhere nothing)."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1  # prctl.h
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, int(number))
