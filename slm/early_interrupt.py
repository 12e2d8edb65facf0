"""Ctrl-C while a command is still being imported: the command ends, with the shell's status and without a traceback.

The packages of the commands import ``slm`` before anything else, and ``slm`` calls ``install`` where it is imported for
a command (``python -m slm.train``, ``slm train``), not as a library. ``slm.cli.run`` gives Ctrl-C back to Python before
the command begins.

It imports nothing that takes time.

Tested in tests/slm/test_cli.py.
"""

import os
import signal
import sys
from types import FrameType

EXIT_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it


def install() -> None:
    """From now on Ctrl-C ends the process at once, if it is a command that is about to begin."""
    # While Python looks for the module of `python -m`, argv[0] is "-m"; later it is the module's path, as it is in the
    # child processes of `multiprocessing`.
    starts = bool(sys.argv) and (sys.argv[0] == "-m" or os.path.basename(sys.argv[0]) in ("slm", "slm.exe"))
    if starts and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def give_back() -> None:
    """Ctrl-C raises ``KeyboardInterrupt`` again, if ``install`` has changed that."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(EXIT_INTERRUPTED)  # nothing has begun, so there is nothing to end in order
