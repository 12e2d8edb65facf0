"""A function in its own process: its answer, its exception, and its death, which must not hang."""

import os
import signal
import threading
import time

import pytest

from slm.machine import crashes
from slm.machine.crashes import DiedError, in_fresh_process


def pid_and(value: int) -> tuple[int, int]:
    return os.getpid(), value


def fail() -> None:
    raise ValueError("as it was raised")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_answer_comes_from_another_process():
    pid, value = in_fresh_process(pid_and, 3)
    assert (pid != os.getpid(), value) == (True, 3)
    with pytest.raises(ValueError, match="as it was raised"):
        in_fresh_process(fail)


@pytest.mark.timeout(60)
def test_a_process_that_is_killed_is_an_error_and_no_wait_without_end():
    with pytest.raises(DiedError, match="die was killed or crashed"):
        in_fresh_process(die)


@pytest.mark.timeout(60)
def test_an_interrupted_caller_does_not_wait_for_its_end():
    """Ctrl-C in a terminal reaches both; one in native code hears nothing of it."""
    began = time.monotonic()
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        in_fresh_process(deaf)
    assert time.monotonic() - began < 20


def deaf() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    time.sleep(50)


@pytest.mark.timeout(60)
def test_a_long_wait_is_reported_with_the_process_that_computes(monkeypatch):
    monkeypatch.setattr(crashes, "_WAITING_S", 0.2)
    seen: list[tuple[int, float]] = []
    pid, _ = in_fresh_process(slow_pid, waiting=lambda process, seconds: seen.append((process, seconds)))
    assert {process for process, _ in seen} == {pid}
    assert [seconds for _, seconds in seen] == sorted(seconds for _, seconds in seen)
    assert len(seen) >= 2


def slow_pid() -> tuple[int, int]:
    time.sleep(1)
    return os.getpid(), 0
