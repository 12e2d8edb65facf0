"""A run's directory from the start of a run to its end: locked, and left as it was where the start is refused.

An earlier run of its name is renamed, and what killed processes left half-written is removed.
"""

import os
import shutil
from pathlib import Path
from types import TracebackType

from slm.data.errors import UserError
from slm.model import checkpoint
from slm.runs import BEST, CONFIG, list_checkpoints
from slm.train.run_lock import LOCK, RunLock, take_lock

TOKENIZER = "tokenizer"
"""The folder of the run's tokenizer."""


class RunDirectory:
    """The directory ``root``. Leaving the context releases its lock.

    A UserError or Ctrl-C between ``open`` and ``accept`` undoes what ``open`` did: a directory that this start made
    is removed, and an earlier run that it renamed gets its name back. ``keep_after`` names the errors after which the
    same run is started again: it must find what it began.
    """

    def __init__(self, root: Path, *, keep_after: type[UserError]) -> None:
        self.root, self._keep_after = root, keep_after
        self._locks: list[RunLock] = []
        self._made: list[Path] = []
        """The directories that did not exist before, the run's own first."""
        self._backup: Path | None = None
        self._accepted = False

    def open(self, *, anew: bool) -> None:
        """Make and lock the directory. With ``anew`` an earlier run of that name is renamed to ``<name>.<n>``.

        UserError where another process trains there, or where the directory cannot be made or written.
        """
        root = self.root
        try:
            missing = [path for path in (root, *root.parents) if not os.path.lexists(path)]
            self._locks.append(take_lock(root))
            self._made = missing if self._is_new() else []
            if not os.access(root, os.W_OK | os.X_OK):
                raise PermissionError(0, "Permission denied", str(root))
            while anew and ((root / CONFIG).exists() or list_checkpoints(root)):
                # The lock moves along. It is held until the end: nobody trains in a directory that may be renamed back.
                # Again where another process was faster: what it left under this name is a run, too.
                self._backup, self._made = back_up(root), []  # until the lock is ours, the new directory is not
                self._locks.append(take_lock(root))
                self._made = [root] if self._is_new() else []
        except OSError as error:
            where = error.filename or root
            raise UserError(
                f"the run's directory {root} cannot be used ({where}: {error.strerror or error}): give "
                "runs_dir=DIR a folder that you may write to"
            ) from error
        remove_partial_files(root)

    def _is_new(self) -> bool:
        """Whether the locked directory is empty: meanwhile another start may have made it, and trained in it."""
        return os.listdir(self.root) == [LOCK]

    def accept(self) -> None:
        """Training begins: from now on everything stays."""
        self._accepted = True
        if self._backup is not None:
            print(f"the earlier run {self.root} is kept as {self._backup}")

    def __enter__(self) -> "RunDirectory":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        refused = isinstance(error, UserError | KeyboardInterrupt) and not isinstance(error, self._keep_after)
        if refused and not self._accepted:
            self._undo()
        for lock in self._locks:
            lock.release()

    def _undo(self) -> None:
        if self._made:
            # Renamed first: a process that waits for this lock must not find a directory that is half removed.
            refused = self.root.with_name(f".{self.root.name}.refused.{os.getpid()}")
            os.rename(self.root, refused)
            shutil.rmtree(refused, ignore_errors=True)
            for parent in self._made[1:]:
                try:
                    parent.rmdir()
                except OSError:  # another run has begun in it
                    break
        if self._backup is not None and not self.root.exists():
            os.rename(self._backup, self.root)


def back_up(root: Path) -> Path | None:
    """Rename the directory ``root`` to the first free ``<name>.<n>``; None where there was none."""
    if not root.exists():
        return None
    n = 1
    while (backup := root.with_name(f"{root.name}.{n}")).exists():
        n += 1
    os.rename(root, backup)
    return backup


def remove_partial_files(root: Path) -> None:
    """Delete what killed processes left half-written. Only for the process that holds the run's lock."""
    checkpoint.sweep(root / "checkpoints")
    for pattern in (f".{TOKENIZER}.*", ".*.tmp", f".{BEST}.*"):
        for path in root.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
