"""The lock of a run's directory: one process at a time trains in it."""

import fcntl
import os
import stat
from pathlib import Path

from slm.data.errors import UserError

LOCK = ".lock"
"""The lock's file in the run's directory. It stays when the run ends."""


class RunLock:
    """A lock that this process holds until ``release``, or until it ends, however it ends."""

    def __init__(self, handle: int) -> None:
        self._handle: int | None = handle

    def release(self) -> None:
        """Give the lock back. Later calls do nothing."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def take_lock(root: Path) -> RunLock:
    """Make the directory ``root`` where it does not exist, and take its lock.

    UserError at once where another process holds it; OSError where the directory cannot be made or written.
    """
    while True:
        try:
            root.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            # pathlib looks again after mkdir has failed: a directory may have been renamed in between, a file stays.
            if _is_something_else(root):
                raise
            continue
        try:
            handle = os.open(root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except FileNotFoundError:  # the directory was renamed after mkdir
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise UserError(
                f"another process is training in {root}: wait for it, stop it, or give this run another name="
            ) from None
        except OSError:
            os.close(handle)
            raise
        if _is_file_at(handle, root / LOCK):
            return RunLock(handle)
        os.close(handle)  # its holder renamed the directory before it released the lock: this is the lock of a backup


def _is_something_else(root: Path) -> bool:
    """Whether something that is no directory stands at ``root``."""
    try:
        return not stat.S_ISDIR(root.lstat().st_mode)
    except FileNotFoundError:
        return False


def _is_file_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


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
