"""Files appear under their final names complete and proven, or not at all.

Everything is written into a hidden folder inside the destination (the same file system, so that the last step is a
rename), flushed to the disk, checked, and only then moved. The folder goes away with the command; one that a killed
command left behind is removed by the next.
"""

import errno
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from slm.data.errors import UserError
from slm.data.storage import fsync
from slm.machine.crash_guard import command_pid, temporary

_STAGING = re.compile(r"\.export-(\d+)")


_REFUSED = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO)
"""What a disk says that is full, or that may not be written."""


class Staging:
    """The hidden folder of one export into ``out``. Use as a context manager."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.folder = out / f".export-{command_pid()}"

    def __enter__(self) -> "Staging":
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(self.out)
            temporary(self.folder)
            self.folder.mkdir()
        except OSError as error:
            raise UserError(
                f"cannot write into {self.out} ({error.strerror}); choose another folder with out=DIR"
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        where = getattr(error, "filename", None)
        ours = where is None or Path(os.fsdecode(where)).is_relative_to(self.out)
        if isinstance(error, OSError) and error.errno in _REFUSED and ours:
            reason = error.strerror or error
            raise UserError(f"cannot write into {self.out} ({reason}): make room, or give out=DIR") from error

    def path(self, name: str) -> Path:
        """Where to write the file that will be ``out/name``."""
        return self.folder / name

    def publish(self, paths: list[Path]) -> list[Path]:
        """Move finished files of this folder to their final names, replacing older ones; returns those names."""
        for path in paths:
            assert path.parent == self.folder, f"{path} was not staged here"
            fsync(path)
        finals = []
        for path in paths:
            final = self.out / path.name
            os.replace(path, final)
            finals.append(final)
        fsync(self.out)
        return finals


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Inside, SIGTERM ends the command as Ctrl-C does: by an exception, so that the staged files are removed."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def check_room(out: Path, n_bytes: int) -> None:
    """UserError unless the file system of ``out`` has ``n_bytes`` free."""
    existing = next(path for path in [out, *out.absolute().parents] if path.exists())
    free = shutil.disk_usage(existing).free
    if free < n_bytes:
        raise UserError(
            f"no room for the export in {out}: it needs up to {n_bytes:,} bytes, {free:,} are free; "
            "free some, ask for fewer types at once, or write elsewhere with out=DIR"
        )


def _remove_abandoned(out: Path) -> None:
    for folder in out.iterdir():
        match = _STAGING.fullmatch(folder.name)
        if match and not _alive(int(match.group(1))):
            shutil.rmtree(folder, ignore_errors=True)


def _alive(pid: int) -> bool:
    if pid == command_pid():
        return False  # a number used again: that folder is not this command's
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
