"""Set-up builds llama.cpp again where its build is wrong, the likeliest cure first."""

import os
import platform
import shlex
import shutil
import subprocess
import sys

import pytest

from slm.data.errors import UserError
from slm.llama import rebuild
from slm.llama.verdict import Verdict, libraries
from tests.helpers import broken_llama

GOOD = Verdict(works=["f16", "q8_0"], features=["AVX2"])
DEAD = Verdict(works=["f32"], features=["AMX_INT8"], failed="q8_0", signal="SIGSEGV")
AMX = {"avx2", "avx512f", "amx_tile"}


def mend(verdicts, flags, cmake_args="-DGGML_NATIVE=ON"):
    """The last verdict, and the CMAKE_ARGS of every build."""
    built, left = [], iter(verdicts)
    return rebuild.mend(flags, cmake_args, try_build=lambda: next(left), build=built.append), built


def test_a_build_that_works_is_left_alone(capsys):
    assert mend([GOOD], AMX) == (GOOD, [])
    assert capsys.readouterr().out == ""


def test_with_amx_the_stores_are_kept_first_and_then_amx_is_left_out(capsys):
    verdict, built = mend([DEAD, GOOD], AMX)
    assert verdict == GOOD
    assert [shlex.split(each) for each in built] == [["-DGGML_NATIVE=ON", "-DCMAKE_CXX_FLAGS=-fno-tree-dse -fno-dse"]]
    (line,) = capsys.readouterr().out.splitlines()
    assert "dies with SIGSEGV when it computes q8_0 (AMX is suspected). Building it again" in line
    verdict, built = mend([DEAD, DEAD, GOOD], AMX)
    assert verdict == GOOD
    assert "-DCMAKE_CXX_FLAGS=-mno-amx-tile -mno-amx-int8 -mno-amx-bf16" in shlex.split(built[-1])
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_what_was_tried_already_is_not_tried_again():
    _, built = mend([DEAD, GOOD], AMX, f"{rebuild.NATIVE} {rebuild.KEEP_STORES}")
    assert len(built) == 1
    assert "-mno-amx-tile" in built[0]


def test_without_amx_avx512_is_left_out():
    _, built = mend([DEAD, GOOD], {"avx2", "avx512f"})
    assert shlex.split(built[0]) == [rebuild.NATIVE, "-DCMAKE_C_FLAGS=-mno-avx512f", "-DCMAKE_CXX_FLAGS=-mno-avx512f"]


def test_a_build_for_another_processor_is_built_for_this_one():
    foreign = Verdict(works=[], features=None, failed="loading", signal="SIGILL")
    assert mend([foreign, GOOD], {"avx2"}, "-DGGML_NATIVE=OFF -DGGML_AVX512=ON") == (GOOD, ["-DGGML_NATIVE=ON"])


@pytest.mark.parametrize("flags", [AMX, {"avx2"}, set()])
def test_where_nothing_helps_it_says_so(flags):
    with pytest.raises(UserError, match=r"dies with SIGSEGV.*no other way to build it") as caught:
        mend([DEAD] * 9, flags)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("given", [{"CMAKE_ARGS": "-DGGML_NATIVE=OFF"}, {"CXX": "clang++"}])
def test_what_the_environment_asks_for_is_built_first(given, monkeypatch):
    """As the advice above says: the present build knows nothing of it."""
    for name in ("CMAKE_ARGS", "CC", "CXX"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(rebuild, "cpu_flags", lambda: {"avx2"})
    built, left = [], iter([DEAD, GOOD])
    real = rebuild.mend
    monkeypatch.setattr(
        rebuild, "mend", lambda *args, **more: real(*args, **more, try_build=lambda: next(left), build=built.append)
    )
    rebuild.main([])
    assert built == [given.get("CMAKE_ARGS", rebuild.NATIVE)]


def test_it_says_which_types_work(monkeypatch, capsys):
    monkeypatch.setattr(rebuild, "mend", lambda flags, cmake_args, asked: GOOD)
    rebuild.main([])
    assert capsys.readouterr().out == "llama.cpp works here: f16, q8_0\n"


def test_a_build_that_fails_is_one_line(monkeypatch):
    done = subprocess.CompletedProcess([], 1, "", "Collecting\n  ERROR: no matching distribution\nmore")
    monkeypatch.setattr(rebuild.subprocess, "run", lambda command, **_: done)
    with pytest.raises(UserError, match="could not be built with CMAKE_ARGS='-DX=1': ERROR: no matching"):
        rebuild.build("-DX=1")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the stand-in's instruction is x86's")
def test_setup_mends_a_build_that_dies(tmp_path, repository):
    """A real llama.cpp that dies of a stand-in for wrong code, until a stand-in for pip has built it again."""
    folder, pip = tmp_path / "lib", tmp_path / "pip"
    folder.mkdir()
    pip.mkdir()
    for path in libraries():
        shutil.copy(path, folder)
    environment = broken_llama.environment(tmp_path, broken_llama.TRAPS)
    (pip / "__init__.py").write_text("")  # or Python would take the real pip
    (pip / "__main__.py").write_text(
        "import json, os, pathlib, sys\n"
        "pathlib.Path(os.environ['LD_PRELOAD']).unlink()\n"
        "for path in pathlib.Path(os.environ['LLAMA_CPP_LIB_PATH']).iterdir(): os.utime(path)\n"
        "print(*sys.argv[1:], os.environ['CMAKE_ARGS'], sep='\\n', file=open('called', 'w'))".replace(
            "'called'", repr(str(tmp_path / "called"))
        )
    )
    environment |= {"PIP_NO_INDEX": "1"}  # the real pip could do nothing
    environment |= {"LLAMA_CPP_LIB_PATH": str(folder), "PYTHONPATH": str(tmp_path), "CMAKE_ARGS": "-DGGML_AVX512=ON"}
    done = subprocess.run(
        [sys.executable, "-m", "slm.llama.rebuild"],
        cwd=repository,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert "dies with SIGILL when it computes q8_0" in first
    assert "Building it again for this processor" in first
    assert second == "llama.cpp works here: f32, f16, q8_0, q4_0, q4_k_m, iq4_xs"
    *words, package, cmake_args = (tmp_path / "called").read_text().splitlines()
    assert {"install", "--force-reinstall", "--no-cache-dir", "--no-deps"} <= set(words)
    assert words[words.index("--no-binary") + 1] == "llama-cpp-python"
    assert package.startswith("llama-cpp-python==")
    assert cmake_args == f"{rebuild.TRIM} {rebuild.NATIVE}"


@pytest.mark.parametrize(("flags", "kept"), [("fpu avx2 amx_bf16 amx_tile", True), ("fpu avx512f", False)])
def test_the_makefile_keeps_the_stores_where_the_processor_has_amx(flags, kept, tmp_path, repository):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor : 0\nflags\t\t: {flags}\n")
    show = ["--eval", 'show: ; @printf "%s" "$$CMAKE_ARGS"']
    done = subprocess.run(
        ["make", "--no-print-directory", *show, f"CPUINFO={cpuinfo}", "show"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=True,
        env={name: value for name, value in os.environ.items() if name != "CMAKE_ARGS"},
    )
    assert shlex.split(done.stdout) == [rebuild.NATIVE, *shlex.split(rebuild.KEEP_STORES)][: 2 if kept else 1]
