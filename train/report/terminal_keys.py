"""Keys of a terminal, read one at a time while something else is drawn.

Tested in tests/train/report/test_watch.py.
"""

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

LEAVE = (b"q", b"Q", b"\x03", b"\x04")
"""q, and Ctrl-C and Ctrl-D where the terminal hands them over as keys."""


@contextlib.contextmanager
def leave_key() -> Iterator[Callable[[float], bool]]:
    """A function that waits so many seconds for one of the keys ``LEAVE`` and returns whether it was pressed.

    Keys are read as they are pressed and are not shown. At the end the terminal is as before, also after a signal.
    """

    def end(number: int, _frame: Any) -> None:
        raise SystemExit(128 + number)

    previous = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        if not sys.stdin.isatty():
            yield _wait_only
            return
        import termios

        handle = sys.stdin.fileno()
        before = termios.tcgetattr(handle)
        ours = termios.tcgetattr(handle)
        ours[3] &= ~(termios.ICANON | termios.ECHO)
        ours[6][termios.VINTR] = os.fpathconf(handle, "PC_VDISABLE").to_bytes(1, "little")
        termios.tcsetattr(handle, termios.TCSADRAIN, ours)
        try:
            yield lambda seconds: _pressed(handle, seconds)
        finally:
            termios.tcsetattr(handle, termios.TCSADRAIN, before)
    except KeyboardInterrupt:  # sent by another process: there is nothing to do but to leave
        pass
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _wait_only(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _pressed(handle: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        ready, _, _ = select.select([handle], [], [], left)
        if not ready:
            return False
        pressed = os.read(handle, 64)
        if not pressed or any(key in pressed for key in LEAVE):
            return True  # nothing to read: the terminal is gone
    return False
