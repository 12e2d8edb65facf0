"""What the launcher of several processes and the processes themselves exchange besides torchrun's own messages.

The launcher passes environment variables down; files in its temporary folder carry exit codes up. The folder outlives
a launcher that is killed (its processes still save), so each launcher removes what earlier ones have left.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from slm.train.run_lock import is_locked

EXIT_FILE = "SLM_EXIT_FILE"
"""Environment variable: the file in which a process leaves its exit code for the launcher."""
MAIN_HOST = "SLM_MAIN_HOST"
"""Environment variable: ``1`` in the processes of the machine that holds the run's directory."""
PREFIX = "slm-launch-"
YOUNG_SECONDS = 60
"""A folder that changed this recently is never removed: its launcher may not have locked it yet."""


def stop_file(exit_file: Path) -> Path:
    """Where the launcher leaves the exit code of a run that was stopped before all its processes could be signalled."""
    return exit_file.with_name("stop")


def restarts() -> int:
    """How often torchrun has restarted this run's processes."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def exit_code(file: Path) -> int | None:
    """The exit code that a process left in ``file``; None where none did."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


@contextmanager
def launch_folder() -> Iterator[Path]:
    """A temporary folder for the files of one launch; the folders of launchers that were killed are removed first."""
    remove_abandoned_folders()
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with in_use(folder):
            yield folder


@contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Keep the launch folder from being removed while this process needs it, even if its launcher is gone."""
    with FileLock(folder / f"{os.getpid()}.lock"):
        yield


def remove_abandoned_folders() -> None:
    """Delete this user's launch folders of which no process holds a lock."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            status = folder.lstat()
        except OSError:
            continue
        if not folder.is_dir() or folder.is_symlink() or status.st_uid != os.getuid():
            continue
        if time.time() - status.st_mtime < YOUNG_SECONDS or any(is_locked(path) for path in folder.glob("*.lock")):
            continue
        shutil.rmtree(folder, ignore_errors=True)
