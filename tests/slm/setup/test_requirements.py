"""The check before the first download: real programs, or a PATH without them."""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from slm.setup import __main__ as setup
from slm.setup import index, requirements
from tests.helpers import REPOSITORY


@pytest.fixture
def bare_path(tmp_path, monkeypatch) -> Path:
    """A PATH with nothing on it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    for name in ("CC", "CXX"):
        monkeypatch.delenv(name, raising=False)
    return folder


def script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.mark.skipif(not shutil.which("g++"), reason="there is no compiler")
def test_a_compiler_that_works_is_no_problem(monkeypatch):
    for name in ("CC", "CXX"):
        monkeypatch.delenv(name, raising=False)
    assert list(requirements.missing_compilers()) == []


def test_missing_compilers_are_named_with_their_packages(bare_path):
    c, cpp = requirements.missing_compilers()
    assert c.startswith("there is no C compiler: ")
    assert cpp.startswith("there is no C++ compiler: ")
    for line in (c, cpp):
        assert any(word in line for word in ("apt install", "dnf install", "xcode-select"))


def test_a_compiler_without_its_headers_does_not_work(bare_path):
    script(bare_path / "cc", "echo 'fatal error: stdio.h: No such file or directory' >&2; exit 1")
    script(bare_path / "c++", "exit 0")
    (line,) = requirements.missing_compilers()
    assert "does not work (fatal error: stdio.h: No such file" in line


def test_a_compiler_that_is_named_has_to_exist(bare_path, monkeypatch):
    script(bare_path / "cc", "exit 0")
    script(bare_path / "mine", "exit 0")
    monkeypatch.setenv("CC", "mine -m64")
    monkeypatch.setenv("CXX", "g++-99")
    (line,) = requirements.missing_compilers()
    assert line.startswith("CXX=g++-99 does not exist: ")


def test_cmake_is_needed_only_where_pypi_has_none(bare_path, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert list(requirements.missing_cmake()) == []
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    (line,) = requirements.missing_cmake()
    assert "PyPI has none for riscv64" in line
    assert "cmake" in line.partition(":")[2]


def test_a_python_without_ensurepip(monkeypatch):
    assert list(requirements.missing_venv()) == []
    monkeypatch.setattr(requirements.importlib.util, "find_spec", lambda name: None)
    (line,) = requirements.missing_venv()
    assert line.startswith("Python has no venv with pip: ")


def test_a_full_disk(tmp_path, monkeypatch):
    assert list(requirements.too_little_room(tmp_path / ".venv")) == [] or shutil.disk_usage(tmp_path).free < 4e9
    monkeypatch.setattr(requirements, "VENV_GB", 1e9)
    lines = list(requirements.too_little_room(tmp_path / ".venv"))
    assert lines
    assert "GB free" in lines[0]
    assert ".venv" in lines[0]


def test_how_to_install_on_a_system_that_is_not_known(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    line = requirements.to_install(apt="a", dnf="b", mac="brew install c")
    assert line == "apt install a (Debian, Ubuntu), dnf install b (Fedora) or brew install c (macOS)"
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert requirements.to_install(apt="a", dnf="b", mac="brew install c") == "brew install c"


def test_everything_that_is_missing_is_said_at_once(bare_path, tmp_path, monkeypatch):
    """As make starts it, in its own process: no compiler, no index, and a folder that cannot be made there."""
    done = subprocess.run(
        [sys.executable, "-m", "slm.setup", f"venv={tmp_path / 'env'}"],
        cwd=REPOSITORY,
        env={
            "PATH": str(bare_path),
            "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
            "PIP_CONFIG_FILE": os.devnull,
            "HOME": str(tmp_path),
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    head, *lines = done.stderr.splitlines()
    assert head == "Before slm can be installed:"
    assert [line.split(":")[0] for line in lines[:2]] == ["  - there is no C compiler", "  - there is no C++ compiler"]
    assert "http://127.0.0.1:9/simple cannot be reached (Connection refused)" in lines[-1]
    assert not (tmp_path / "env").exists()


def test_an_installation_that_was_interrupted_still_needs_a_compiler(bare_path, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(index, "unreachable_index", lambda uv: [])
    venv = tmp_path / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    assert setup.main([f"venv={venv}", "check=only"]) == 1
    assert "there is no C++ compiler" in capsys.readouterr().err
    (next(venv.glob("lib/python3.*")) / "site-packages/llama_cpp").mkdir()
    assert setup.main([f"venv={venv}", "check=only"]) == 0
    assert capsys.readouterr().out == "Nothing is missing.\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to run as somebody else")
def test_a_user_who_may_not_write_here_gets_a_line(monkeypatch):
    monkeypatch.setattr(index, "unreachable_index", lambda uv: [])
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        os.seteuid(65534)
        try:
            found = requirements.find_problems(Path(folder, ".venv"), new=False, uv=None)
        finally:
            os.seteuid(0)
    assert len(found) == 1
    assert "cannot be written by this user" in found[0]
