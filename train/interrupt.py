"""Ctrl-C, SIGTERM and the end of the terminal (SIGHUP): the step is finished, the state is saved, the run ends.

Tested in tests/train/test_reliability.py, tests/train/test_main.py.
"""

import contextlib
import os
import select
import signal
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from slm.machine.crashes import end_with_parent

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that ask a run to save and end."""


def handle_stop_signals(handler: Callable[[int, FrameType | None], None]) -> dict[int, Any]:
    """Let ``handler`` receive the stop signals. Returns the handlers of before, by signal.

    A SIGHUP that is ignored stays ignored: that is how ``nohup`` lets a program outlive its terminal.
    """
    previous = {}
    for number in STOP_SIGNALS:
        if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
            continue
        previous[int(number)] = signal.signal(number, handler)
    return previous


def start_apart(command: Sequence[str | Path], log: Path, **options: Any) -> "subprocess.Popen[bytes]":
    """A process with its output added to ``log``. A terminal's Ctrl-C does not reach it, so that its parent passes the
    stop signals on, and it gets SIGTERM where this process is killed. ``options``: more of ``subprocess.Popen``."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: end_with_parent(signal.SIGTERM),
            **options,
        )


def drop_lost_output() -> None:
    """Send standard output and error nowhere, unless they are files or a terminal that is still there.

    Without a terminal every write to it fails, and so do writes to a program that the terminal took along
    (``... | tee log``). A run that saves must not fail at a line that nobody reads.
    """
    for handle in (1, 2):
        with contextlib.suppress(OSError):
            if not stat.S_ISREG(os.fstat(handle).st_mode) and not os.isatty(handle):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, handle)
                os.close(nowhere)


class Watcher:
    """A thread that hears of a stop signal at once, also where the main thread is in a long computation and its own
    handler waits. ``heard`` is called once, with the first signal's number, ``tick`` about every second."""

    def __init__(self, heard: Callable[[int], None], tick: Callable[[], None], seconds: float = 1.0) -> None:
        self._heard, self._tick, self._seconds = heard, tick, seconds

    def __enter__(self) -> "Watcher":
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)  # Python's rule for what a signal writes to
        self._before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=self._leave_to_parent)
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._before)
        os.write(self._write, b"\0")  # no signal; that the pipe is closed is not seen while a child has it, too
        self._thread.join()
        os.close(self._write)
        os.close(self._read)
        self._write = -1

    def _leave_to_parent(self) -> None:
        """A signal to a child is not one to this process, though both have the pipe."""
        if self._write >= 0:
            signal.set_wakeup_fd(-1)

    def _run(self) -> None:
        heard = False
        while True:
            ready, _, _ = select.select([self._read], [], [], self._seconds)
            if not ready:
                self._tick()
                continue
            numbers = os.read(self._read, 64)
            if 0 in numbers:
                return
            if not heard and (stops := [each for each in numbers if each in STOP_SIGNALS]):
                heard = True
                self._heard(stops[0])


def signal_name(number: int) -> str:
    """As a person knows it."""
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


class StoppedError(BaseException):
    """A signal came while there was nothing worth finishing. ``except Exception`` does not catch it."""


class Interrupt:
    """Remembers that a signal asked the run to end. A second Ctrl-C ends it at once, except during a save."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._saving = False
        self._at_once = False
        self._previous: dict[int, Any] = {}

    def __bool__(self) -> bool:
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """128 + the signal's number, as in shells: 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP; else 0."""
        return 0 if self.signal is None else 128 + self.signal

    def __enter__(self) -> "Interrupt":
        self._previous = handle_stop_signals(self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            drop_lost_output()
        first, self.signal = self.signal is None, number
        if self._saving:
            return
        if first and self._at_once:
            raise StoppedError
        if not first and number == signal.SIGINT:
            raise KeyboardInterrupt

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Inside this context no signal interrupts; it takes effect afterwards."""
        before, self._saving = self._saving, True
        try:
            yield
        finally:
            self._saving = before

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Inside this context the first signal raises StoppedError: what runs may take minutes and need not be kept."""
        self._at_once = True
        try:
            yield
        except Exception as error:
            if self:  # Ctrl-C in a terminal also reaches a compiler that this process waits for
                raise StoppedError from error
            raise
        finally:
            self._at_once = False
