"""Child processes with native code that may die: tried, watched, and not left behind; and functions called in one, so
that memory, threads and settings are gone afterwards.

Tested in tests/slm/machine/test_crashes.py, tests/slm/machine/test_fresh_process.py.
"""

import ctypes
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import TypeVar

import slm

Result = TypeVar("Result")


class DiedError(Exception):
    """The process ended without an answer: killed, for want of memory say, or crashed."""


def in_fresh_process(function: Callable[..., Result], *arguments: object) -> Result:
    """``function(*arguments)``, computed there; its exceptions are raised here. DiedError where there is no answer."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(function, *arguments).result()
        except BrokenProcessPool:
            raise DiedError(f"the process of {function.__name__} was killed or crashed") from None


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
