"""The build of llama.cpp beside the installation: who waits, what is kept, and what is said when it fails."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slm.data.errors import UserError
from slm.setup import llama

LOG = b"-- Configuring done\n[1/80] cc -c a.c\n[20/80] c++ -c b.cpp\n"


@pytest.fixture
def venv(tmp_path, monkeypatch):
    """An environment whose llama.cpp was begun a minute ago."""
    monkeypatch.setattr(llama, "EVERY_S", 0.05)
    llama.state_file(tmp_path).write_text(json.dumps({"begun": time.time() - 60}))
    llama.log_file(tmp_path).write_bytes(LOG)
    return tmp_path


def test_nobody_waits_where_nothing_is_built(tmp_path):
    begin = time.monotonic()
    llama.wait(tmp_path, say=pytest.fail)
    assert time.monotonic() - begin < 1


def test_the_progress_is_that_of_the_compiler(venv):
    assert llama.progress(venv).startswith("20 of 80 steps, about 18")
    llama.log_file(venv).write_bytes(LOG + b"[80/80] link\n")
    assert llama.progress(venv).startswith("all 80 steps are done")
    llama.log_file(venv).write_bytes(b"Collecting\n")
    assert llama.progress(venv).startswith("fetching its source")


def test_a_command_waits_for_the_builder(venv):
    """Another process holds the lock; when it has ended the build, the command goes on."""
    holder = subprocess.Popen(
        [
            *(sys.executable, "-c"),
            "import fcntl, os, sys, time\n"
            "file = open(sys.argv[1], 'a'); fcntl.flock(file, fcntl.LOCK_EX); print('held', flush=True)\n"
            "time.sleep(1.2); os.unlink(sys.argv[2])",
            *(str(venv / "llama-build.lock"), str(llama.state_file(venv))),
        ],
        stdout=subprocess.PIPE,
    )
    assert holder.stdout.readline() == b"held\n"
    said: list[str] = []
    llama.wait(venv, say=said.append)
    holder.communicate()
    assert said[0].startswith("llama.cpp is being built: 20 of 80 steps")
    assert said[-1] == "llama.cpp is built."


def test_a_build_that_failed_says_why(venv):
    llama.state_file(venv).write_text(json.dumps({"begun": time.time(), "error": "the compiler has no memory"}))
    with pytest.raises(UserError, match=r"the compiler has no memory; (slm|make) setup tries again"):
        llama.wait(venv)


def test_a_builder_that_died_is_replaced(venv, monkeypatch):
    """Its lock is free: the command builds itself."""
    built = []
    monkeypatch.setattr(llama, "_build_here", lambda folder, say: built.append(folder))
    llama.wait(venv)
    assert built == [venv]


def fake_pip(folder: Path, body: str) -> Path:
    python = folder / "python"
    python.write_text(f"#!/bin/sh\n{body}\n")
    python.chmod(0o755)
    return python


def test_a_wheel_is_kept_by_what_it_depends_on(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    count = tmp_path / "count"
    python = fake_pip(
        tmp_path,
        f'echo "$CMAKE_ARGS" >> {count}\nfor last; do :; done\ntouch "$last/llama_cpp_python-1-py3-none-any.whl"',
    )
    with (tmp_path / "log").open("wb") as log:
        first = llama.wheel(python, "-DA=1", log=log)
        assert first.is_file()
        assert llama.wheel(python, "-DA=1", log=log) == first
        other = llama.wheel(python, "-DA=2", log=log)
        assert other != first
        monkeypatch.setattr(llama, "_processor", lambda: "another one")
        assert llama.wheel(python, "-DA=1", log=log) not in (first, other)
    built = count.read_text().splitlines()
    assert len(built) == 3
    assert built[0] == f"{llama.TRIM} -DA=1"


def test_the_reason_of_a_failed_build_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    python = fake_pip(tmp_path, "echo building; echo 'a.cpp:3: fatal error: no memory'; exit 1")
    with (tmp_path / "log").open("wb") as log, pytest.raises(UserError, match=r"fatal error: no memory") as caught:
        llama.wheel(python, "-DA=1", log=log)
    assert "\n" not in str(caught.value)
