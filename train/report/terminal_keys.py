"""Keys of a terminal, read one at a time while something else is drawn.

Tested in tests/train/report/test_watch.py.
"""

import contextlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator

LEAVE = (b"q", b"Q", b"\x03", b"\x04")
"""q, and Ctrl-C and Ctrl-D where the terminal hands them over as keys."""


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def leave_key() -> Iterator[Callable[[float], bool]]:
    """A function that waits this many seconds and returns whether one of the keys ``LEAVE`` was pressed or one of
    ``SIGNALS`` came.

    Keys are read as they are pressed and are not shown. At the end the terminal is as before. After SIGTERM and SIGHUP
    the process then ends with 128 + the signal's number.

    A handler here only notes its signal: an exception out of it could be raised, and lost, anywhere.
    """
    came: list[int] = []
    previous = {number: signal.signal(number, lambda number, _frame: came.append(number)) for number in SIGNALS}
    # A signal's number is written here, so that it ends the wait.
    reads, writes = socket.socketpair()
    for end in (reads, writes):
        end.setblocking(False)
    wakeup = signal.set_wakeup_fd(writes.fileno(), warn_on_full_buffer=False)
    try:
        with _keys_at_once() as handle:
            yield lambda seconds: _waited(seconds, handle, reads, came)
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in previous.items():
            signal.signal(number, handler)
        reads.close()
        writes.close()
    if ends := [number for number in came if number != signal.SIGINT]:
        raise SystemExit(128 + ends[0])


@contextlib.contextmanager
def _keys_at_once() -> Iterator[int | None]:
    """Standard input's handle, with keys that come one at a time and unseen, or nothing where it is no terminal."""
    if not sys.stdin.isatty():
        yield None
        return
    import termios

    handle = sys.stdin.fileno()
    before = termios.tcgetattr(handle)
    ours = termios.tcgetattr(handle)
    ours[3] &= ~(termios.ICANON | termios.ECHO)
    ours[6][termios.VINTR] = os.fpathconf(handle, "PC_VDISABLE").to_bytes(1, "little")
    termios.tcsetattr(handle, termios.TCSADRAIN, ours)
    try:
        yield handle
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)


def _waited(seconds: float, handle: int | None, wakeup: socket.socket, came: list[int]) -> bool:
    """Whether to leave, after this many seconds at most."""
    deadline = time.monotonic() + seconds
    while not came and (left := deadline - time.monotonic()) > 0:
        sources = [wakeup.fileno()] if handle is None else [wakeup.fileno(), handle]
        ready, _, _ = select.select(sources, [], [], left)
        if wakeup.fileno() in ready:
            wakeup.recv(64)
        if handle is not None and handle in ready:
            pressed = os.read(handle, 64)
            if not pressed or any(key in pressed for key in LEAVE):
                return True  # nothing to read: the terminal is gone
    return bool(came)
