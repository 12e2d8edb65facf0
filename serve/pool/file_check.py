"""Whether a served file holds the bytes that its export wrote, found out while it is already being served.

A thread of the lowest priority reads the file once. Hashing releases Python's lock, so the event loop goes on. The
thread is a daemon: the server's end does not wait for it.

Tested in tests/serve/test_exported_files.py.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from pathlib import Path

from slm import exported

THREAD_NAME = "slm-file-check"


class FileCheck:
    """The check of one model's file. ``damage`` is one line once the check has failed, else None."""

    def __init__(self) -> None:
        self.damage: str | None = None
        self._checked: tuple[int, int, int] | None = None  # the file that was checked last, or is being checked

    def start(self, path: Path) -> None:
        """Checks the file as it is now, unless that was done before. Returns at once.

        Without a record of the file in its folder there is nothing to check.
        """
        try:
            status = path.stat()
        except OSError:
            return  # loading the model reports it
        now = (status.st_ino, status.st_size, status.st_mtime_ns)
        if now == self._checked:
            return
        self._checked, self.damage = now, None
        path = path.resolve()  # the record stands next to the file, not next to a link to it
        expected = exported.recorded_sums(path.parent).get(path.name)
        if expected is not None:
            arguments = (path, expected, now)
            threading.Thread(target=self._check, args=arguments, daemon=True, name=THREAD_NAME).start()

    def _check(self, path: Path, expected: str, checked: tuple[int, int, int]) -> None:
        with contextlib.suppress(AttributeError, OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)  # of this thread alone, on Linux
        line = exported.damage(path, expected)
        if line is not None and self._checked == checked:
            self.damage = line
            print(f"warning: {line}", file=sys.stderr, flush=True)
