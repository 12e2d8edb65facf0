"""Ctrl-C and SIGTERM: the step is finished, the state is saved, the run ends.

Tested in tests/train/test_reliability.py, tests/train/test_main.py.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


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
        """128 + the signal's number, as shells report it: 130 after Ctrl-C, 143 after SIGTERM; 0 without one."""
        return 0 if self.signal is None else 128 + self.signal

    def __enter__(self) -> "Interrupt":
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
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
