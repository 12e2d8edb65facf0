"""A launch's temporary folder goes when the launch ends, and when a later one finds that its processes are gone."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slm.train.distributed.launch_files import YOUNG_SECONDS, in_use, launch_folder
from tests.helpers import REPOSITORY

HOLD = (
    "import sys, time\nfrom slm.train.distributed.launch_files import launch_folder\n"
    "with launch_folder() as folder: print(folder, flush=True); time.sleep(600)"
)


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch) -> Path:
    """Where temporary folders are made."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


def hold() -> tuple[subprocess.Popen, Path]:
    """A process that holds a launch folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLD], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def make_old(folder: Path) -> None:
    old = time.time() - 2 * YOUNG_SECONDS
    os.utime(folder, (old, old))


def test_the_folder_of_a_killed_launcher_is_removed_by_the_next():
    process, folder = hold()
    (folder / "exit").write_text("0")
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert folder.is_dir()
    make_old(folder)
    with in_use(folder):  # a process of the run that still saves
        make_old(folder)
        with launch_folder():
            assert folder.is_dir()
    make_old(folder)
    with launch_folder() as own:
        assert not folder.exists()
        assert own.is_dir()
    assert not own.exists()


def test_the_folder_of_a_launcher_that_lives_stays_and_so_does_a_young_one(temporary):
    process, folder = hold()
    try:
        make_old(folder)
        young = temporary / "slm-launch-young"
        young.mkdir()
        with launch_folder():
            assert folder.is_dir()
            assert young.is_dir()
    finally:
        process.kill()
        process.communicate()
