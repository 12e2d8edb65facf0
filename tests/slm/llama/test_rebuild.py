"""Set-up builds llama.cpp again where its build is wrong, the likeliest cure first."""

import shlex
import subprocess

import pytest

from data.errors import UserError
from slm.llama import rebuild
from slm.llama.verdict import Verdict

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


def test_it_says_which_types_work(monkeypatch, capsys):
    monkeypatch.setattr(rebuild, "mend", lambda flags, cmake_args: GOOD)
    rebuild.main([])
    assert capsys.readouterr().out == "llama.cpp works here: f16, q8_0\n"


def test_a_build_that_fails_is_one_line(monkeypatch):
    done = subprocess.CompletedProcess([], 1, "", "Collecting\n  ERROR: no matching distribution\nmore")
    monkeypatch.setattr(rebuild.subprocess, "run", lambda command, **_: done)
    with pytest.raises(UserError, match="could not be built with CMAKE_ARGS='-DX=1': ERROR: no matching"):
        rebuild.build("-DX=1")


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
    )
    assert shlex.split(done.stdout) == [rebuild.NATIVE, *shlex.split(rebuild.KEEP_STORES)][: 2 if kept else 1]
