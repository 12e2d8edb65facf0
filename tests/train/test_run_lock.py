"""One process at a time trains in a run's directory; others may see that it does."""

import errno
import fcntl
import os
import signal
import subprocess
import sys

import pytest

from slm.data.errors import UserError
from slm.train.run_lock import LOCK, is_locked, take_lock
from tests.helpers import REPOSITORY

HOLD = (
    "import pathlib, sys, time\nfrom slm.train.run_lock import take_lock\n"
    "lock = take_lock(pathlib.Path(sys.argv[1])); print('held', flush=True); time.sleep(600)"
)


def test_looking_at_a_lock_takes_nothing_from_anyone(tmp_path):
    path = tmp_path / ".lock"
    assert not is_locked(path)
    with path.open("a+") as file:
        assert not is_locked(path)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert is_locked(path)
    assert not is_locked(path)


def test_a_second_process_is_refused_until_the_first_is_gone_however_it_ends(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    first = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    try:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        assert is_locked(tmp_path / LOCK)
        with pytest.raises(UserError, match=r"another process is training in .*: wait for it, stop it, or give"):
            take_lock(tmp_path)
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    assert not is_locked(tmp_path / LOCK)
    lock = take_lock(tmp_path)
    assert is_locked(tmp_path / LOCK)
    lock.release()
    assert not is_locked(tmp_path / LOCK)
    assert (tmp_path / ".lock").exists()


def test_a_directory_that_is_renamed_while_it_is_made_is_made_again(tmp_path, monkeypatch):
    """mkdir finds the directory of another run, which is renamed before pathlib looks whether it is a directory."""
    root, make = tmp_path / "run", os.mkdir

    def found_and_renamed(path, *arguments):
        monkeypatch.setattr(os, "mkdir", make)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)

    monkeypatch.setattr(os, "mkdir", found_and_renamed)
    lock = take_lock(root)
    assert is_locked(root / LOCK)
    lock.release()


@pytest.mark.parametrize("make", ["touch", "dangling link"])
def test_what_is_no_directory_cannot_be_locked(make, tmp_path):
    root = tmp_path / "run"
    if make == "touch":
        root.touch()
    else:
        root.symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError):
        take_lock(root)
