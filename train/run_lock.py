"""The lock of a run's directory: one process at a time trains in it."""

import fcntl
import os
from pathlib import Path

from filelock import FileLock, Timeout

from data.errors import UserError

LOCK = ".lock"
"""The lock's file in the run's directory. It stays when the run ends."""


def take_lock(root: Path) -> FileLock:
    """The lock of the run in ``root``, held until it is released or this process ends, however it ends.

    UserError at once where another process holds it.
    """
    lock = FileLock(root / LOCK)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise UserError(
            f"another process is training in {root}: wait for it, stop it, or give this run a name= of its own"
        ) from None
    return lock


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock file ``path``. The lock itself is not taken where the system lists its locks."""
    try:
        file = path.open("rb")
    except OSError:
        return False
    with file:
        status = os.fstat(file.fileno())
        try:
            table = Path("/proc/locks").read_text()
        except OSError:
            table = ""
        device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
        if f" {device}:{status.st_ino} " in table:
            return True
        # Not every system has the table, nor every container all of it.
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        return False
