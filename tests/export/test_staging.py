import os
import signal
import subprocess
import sys

import pytest

from slm.data.errors import UserError
from slm.export.staging import Staging, check_room, exit_on_sigterm


def test_published_files_appear_and_staging_goes(tmp_path):
    out = tmp_path / "deep" / "gguf"
    with Staging(out) as staging:
        staging.path("a.gguf").write_bytes(b"new")
        (out / "a.gguf").write_bytes(b"old")
        assert staging.publish([staging.path("a.gguf")]) == [out / "a.gguf"]
    assert [path.name for path in out.iterdir()] == ["a.gguf"]
    assert (out / "a.gguf").read_bytes() == b"new"


def test_an_exception_leaves_nothing(tmp_path):
    def broken() -> None:
        with Staging(tmp_path) as staging:
            staging.path("a.gguf").write_bytes(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        broken()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_command_left_is_removed_and_a_living_ones_is_kept(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    abandoned, living = tmp_path / f".export-{dead.pid}", tmp_path / f".export-{os.getppid()}"
    for folder in (abandoned, living):
        folder.mkdir()
        (folder / "a.gguf").write_bytes(b"half")
    with Staging(tmp_path):
        assert not abandoned.exists()
        assert living.exists()


def test_no_room_and_no_folder_are_reported(tmp_path):
    check_room(tmp_path / "not" / "there", 1)
    with pytest.raises(UserError, match="no room"):
        check_room(tmp_path, 1 << 60)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="out=DIR"), Staging(tmp_path / "file" / "gguf"):
        pass


def test_sigterm_removes_the_staged_files_as_ctrl_c_does(tmp_path):
    before = signal.getsignal(signal.SIGTERM)

    def killed() -> None:
        with exit_on_sigterm(), Staging(tmp_path) as staging:
            staging.path("a.gguf").write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit) as ended:
        killed()
    assert ended.value.code == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) == before
