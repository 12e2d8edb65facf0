"""A file holds its old content or all of the new, damage in the cache is found, locks end with their processes."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from slm.data import storage
from slm.data.storage import (
    NoRoomError,
    atomic_write_bytes,
    atomic_write_text,
    cache_home,
    fingerprint,
    locked,
    read_checked,
    stamps,
    write_checked,
)

HOLD = """
import sys, time
from pathlib import Path
from slm.data.storage import locked

with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def holder(repository, path):
    """A process that holds the lock ``path``."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        cwd=repository,
        env=os.environ | {"PYTHONPATH": str(repository)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    return process


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_home() == tmp_path / "slm"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_home() == tmp_path / ".cache" / "slm"


def test_a_file_comes_back_unless_it_is_damaged(tmp_path):
    path = tmp_path / "folder" / "file"
    assert read_checked(path) is None
    write_checked(path, b"content")
    assert read_checked(path) == b"content"
    assert storage.digest_of(path) == path.read_bytes()[:16].hex()
    assert [each.name for each in path.parent.iterdir()] == ["file"]
    path.write_bytes(path.read_bytes()[:-1])
    assert read_checked(path) is None
    path.write_bytes(b"")
    assert read_checked(path) is None


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_checked(path, b"old")
    monkeypatch.setattr(storage, "RESERVE", shutil.disk_usage(tmp_path).free + (1 << 30))
    with pytest.raises(NoRoomError, match=r"GB free, too little.*data\.cache_dir=DIR.*data\.cache=false"):
        write_checked(path, b"new")
    assert read_checked(path) == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_names_follow_the_values(tmp_path):
    assert fingerprint((1, "a")) == fingerprint((1, "a")) != fingerprint((1, "b"))
    path = tmp_path / "file"
    path.write_text("one")
    before = stamps([str(path)])
    assert before == ((str(path), 3, path.stat().st_mtime_ns),)
    os.utime(path, (1, 1))
    assert stamps([str(path)]) != before


def test_a_lock_waits_for_a_living_process_and_not_for_a_killed_one(repository, tmp_path):
    path = tmp_path / "folder" / "file.lock"
    process = holder(repository, path)
    entered = threading.Event()

    def enter():
        with locked(path):
            entered.set()

    thread = threading.Thread(target=enter)
    try:
        thread.start()
        assert not entered.wait(0.5)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    assert entered.wait(10)
    thread.join()
    with locked(path):  # it is free again
        pass


def test_threads_of_one_process_wait_for_each_other(tmp_path):
    inside, most = [], []

    def enter():
        with locked(tmp_path / "lock"):
            inside.append(1)
            most.append(len(inside))
            inside.pop()

    threads = [threading.Thread(target=enter) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 8


def test_a_lock_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(NoRoomError, match=r"cannot be written .*data\.cache_dir=DIR"), locked(tmp_path / "file" / "x"):
        pass
    (tmp_path / "lock").mkdir()
    with pytest.raises(NoRoomError, match=r"cannot be written \(Is a directory\)"), locked(tmp_path / "lock"):
        pass


def test_the_new_content_replaces_the_old_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    atomic_write_text(path, "new ü")
    assert path.read_bytes() == "new ü".encode()
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_content(tmp_path, monkeypatch):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        atomic_write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_home_that_cannot_be_written_has_its_cache_among_temporary_files(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/nonexistent/home")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda path, mode: str(path).startswith(str(tmp_path)))  # root may write anywhere
    folder = cache_home().parent
    assert folder.parent == tmp_path
    assert folder.stat().st_mode & 0o777 == 0o700
    # What others may write, or have put there, is not used.
    folder.chmod(0o777)
    assert cache_home() == Path("/nonexistent/home/.cache/slm")
    folder.rmdir()
    (tmp_path / "theirs").mkdir()
    folder.symlink_to(tmp_path / "theirs")
    assert cache_home() == Path("/nonexistent/home/.cache/slm")
