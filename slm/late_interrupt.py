"""Ctrl-C while a library computes in native code, which Python cannot leave: the command says so at once, and ends.

Python raises ``KeyboardInterrupt`` only between two Python instructions. Training a tokenizer on 50 MB takes half a
minute in one call, so that Ctrl-C seemed to do nothing. A thread waits for the signal's byte
(``signal.set_wakeup_fd``). Commands with another handler (training, the server) replace it.

Tested in tests/slm/test_cli.py.
"""

import os
import signal
import socket
import sys
import threading
from types import FrameType
from typing import NoReturn

from slm.early_interrupt import EXIT_INTERRUPTED

TOLD_SECONDS = 0.3
"""After so long without ``KeyboardInterrupt`` a line says that Ctrl-C has arrived."""
END_SECONDS = 4.0
"""After so long more the process ends. Files are written under other names and renamed, so none is left half done."""
_OPEN: list[socket.socket] = []
"""Python writes each signal's byte until the process ends, whoever handles it."""


def watch() -> None:
    """Watch Ctrl-C until the process ends or somebody installs another handler. Only in the main thread."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    raised = threading.Event()
    reads, writes = socket.socketpair()
    writes.setblocking(False)
    _OPEN.extend((reads, writes))
    signal.set_wakeup_fd(writes.fileno(), warn_on_full_buffer=False)

    def leave() -> None:
        """A forked process has the socket, but not the thread: its signals would end its parent."""
        if (before := signal.set_wakeup_fd(-1)) not in (-1, writes.fileno()):
            signal.set_wakeup_fd(before)

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raised.set()
        raise KeyboardInterrupt

    def look() -> None:
        while reads.recv(1) != bytes([signal.SIGINT]):
            pass
        if raised.wait(TOLD_SECONDS) or signal.getsignal(signal.SIGINT) is not interrupt:
            return
        print("interrupted: ending what is being computed", file=sys.stderr, flush=True)
        if not raised.wait(END_SECONDS) and signal.getsignal(signal.SIGINT) is interrupt:
            os._exit(EXIT_INTERRUPTED)

    os.register_at_fork(after_in_child=leave)
    signal.signal(signal.SIGINT, interrupt)
    threading.Thread(target=look, name="interrupt", daemon=True).start()
