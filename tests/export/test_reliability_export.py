"""Full disks, kills and false files, against the command. Numbers refer to the reliability list
(docs/results/serving-reliability.md)."""

import contextlib
import functools
import os
import pickle
import random
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from slm.llama.gguf_check import read_header
from tests.helpers import tiny_checkpoint as tiny
from tests.helpers.export_faults import fill, fill_before_quantizing
from tests.helpers.programs import Program


@pytest.fixture
def start(tmp_path):
    """Starts an export. Its output is not on the small disk."""
    return lambda *words, **options: Program("slm.export", [*words, "threads=1"], tmp_path, **options)


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int):
    """A separate file system; skips where this user cannot mount one."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "slm-test", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount command: no small disk to fill")
    if done.returncode:
        pytest.skip(f"no small disk to fill: {done.stderr.strip()} (root can mount one)")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("name", ["F32", "Q8_0"])
def test_a_disk_that_fills_up_while_it_is_written(tmp_path, start, name):
    """List, 9: no file under a final name, nothing left behind, one line that names the file; an older file stays."""
    root = tiny.run(tmp_path / "run")
    with small_disk(tmp_path / "disk", 40) as disk:
        older = disk / "gguf" / "older.gguf"
        older.parent.mkdir()
        older.write_bytes(b"older")
        full = functools.partial(fill_before_quantizing, disk, 300_000) if name == "Q8_0" else None
        for _ in range(3):
            child = start(f"run={root}", f"out={disk / 'gguf'}", "quant=f32,q8_0", prepare=full)
            until = time.monotonic() + 120
            while name == "F32" and "checkpoint" not in child.out and child.poll() is None:
                assert time.monotonic() < until, child.out
                time.sleep(0.005)
            if name == "F32":
                fill(disk, leave=300_000)
            said, error = child.communicate(timeout=120)
            if child.returncode:
                break
            # The disk was full too late: once more, from the beginning.
            for path in [disk / "filler", *(disk / "gguf").iterdir()]:
                if path != older:
                    path.unlink(missing_ok=True)
        assert child.returncode == 2, said + error
        (line,) = error.strip().splitlines()
        assert line.startswith("error: ")
        assert name in line or name.lower() in line
        assert [path.name for path in (disk / "gguf").iterdir()] == ["older.gguf"]
        assert older.read_bytes() == b"older"


def test_too_small_a_disk_is_reported_before_anything_is_written(tmp_path, start):
    """List, 9: with the bytes that are needed and those that are free."""
    root = tiny.run(tmp_path / "run")
    with small_disk(tmp_path / "disk", 8) as disk:
        child = start(f"run={root}", f"out={disk / 'gguf'}", "quant=f32")
        _, error = child.communicate(timeout=120)
        assert child.returncode == 2
        assert re.search(r"needs up to [\d,]+ bytes, [\d,]+ are free", error)
        assert list((disk / "gguf").iterdir()) == []


def test_kills_at_any_moment(tmp_path, start):
    """List, 9: kill -9 at random moments of an export: what has a final name is whole, and the next export works."""
    root = tiny.run(tmp_path / "run")
    began = time.monotonic()
    child = start(f"run={root}", f"out={tmp_path / 'once'}", "quant=f32,q4_k_m")
    assert child.wait(120) == 0
    whole = {path.name: path.stat().st_size for path in (tmp_path / "once").glob("*.gguf")}
    took, rng = time.monotonic() - began, random.Random(0)
    out = tmp_path / "gguf"
    for _ in range(3):
        child = start(f"run={root}", f"out={out}", "quant=f32,q4_k_m")
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(took * rng.uniform(0.1, 1.0))
        child.send_signal(signal.SIGKILL)
        child.wait(60)
        for path in out.glob("*.gguf"):
            assert path.stat().st_size == whole[path.name]
            read_header(path)
    child = start(f"run={root}", f"out={out}", "quant=f32,q4_k_m")
    _, error = child.communicate(timeout=120)
    assert child.returncode == 0, error
    assert {path.name: path.stat().st_size for path in out.glob("*.gguf")} == whole
    assert not list(out.glob(".export-*"))


class _Evil:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return (os.system, (f"touch {self.marker}",))


def test_a_pickle_under_the_name_of_safetensors(tmp_path, start):
    """List, 10: refused in one line, and nothing in it runs."""
    folder = tiny.checkpoint(tmp_path / "pickled")
    marker = tmp_path / "ran"
    (folder / "model.safetensors").write_bytes(pickle.dumps(_Evil(marker)))
    child = start(f"run={folder}", "quant=f32")
    _, error = child.communicate(timeout=120)
    assert child.returncode == 2, error
    (line,) = error.strip().splitlines()
    assert "model.safetensors" in line
    assert not marker.exists()
    assert not (folder / "gguf").exists() or not list((folder / "gguf").iterdir())
