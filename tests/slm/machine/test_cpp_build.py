"""The C++ compiler that is chosen, and the library that it makes once."""

import ctypes
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from slm.machine import cpp_build
from slm.machine.cpp_build import build, compiler, torch_compile_lacks


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """Makes programs of the names given, which alone are on the path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CXX", raising=False)

    def make(*names: str) -> Path:
        for name in names:
            (folder / name).write_text("#!/bin/sh\n")
            (folder / name).chmod(0o755)
        return folder

    return make


def test_there_may_be_none(tools):
    tools()
    assert compiler() is None
    assert compiler(gcc_only=True) is None


def test_gcc_comes_first_and_clang_serves_torch_alone(tools):
    folder = tools("clang++")
    assert (compiler(), compiler(gcc_only=True)) == (str(folder / "clang++"), None)
    tools("g++")
    assert compiler() == compiler(gcc_only=True) == str(folder / "g++")


def test_the_environment_names_another_gcc(tools, monkeypatch):
    folder = tools("g++", "x86_64-linux-gnu-g++-13")
    monkeypatch.setenv("CXX", "x86_64-linux-gnu-g++-13")
    assert compiler() == compiler(gcc_only=True) == str(folder / "x86_64-linux-gnu-g++-13")


def test_a_cache_before_the_compiler_is_passed_over(tools, monkeypatch):
    folder = tools("ccache", "g++")
    for named in ("ccache g++", "g++ -m64", "ccache g++ -m64", 'g++ "'):
        monkeypatch.setenv("CXX", named)
        assert compiler() == compiler(gcc_only=True) == str(folder / "g++")
        assert torch_compile_lacks() == f'there is no program CXX="{named}" (its name alone, without options)'


def test_a_clang_that_the_environment_names_does_not_build_what_shares_torchs_threads(tools, monkeypatch):
    folder = tools("g++", "clang++")  # its name ends with g++, too
    monkeypatch.setenv("CXX", str(folder / "clang++"))
    assert compiler() == str(folder / "clang++")
    assert compiler(gcc_only=True) == str(folder / "g++")


def test_torch_compile_needs_openmp_as_debians_clang_alone_has_not(tools, tmp_path, monkeypatch):
    folder = tools()
    headers = tmp_path / "include"
    headers.mkdir()
    (headers / "Python.h").touch()
    monkeypatch.setattr(cpp_build.sysconfig, "get_path", lambda _: str(headers))
    assert torch_compile_lacks() == "there is no C++ compiler (apt install g++)"
    tools("clang++")
    assert torch_compile_lacks() is None
    (headers / "Python.h").unlink()
    assert torch_compile_lacks() == "Python's headers are missing (apt install python3-dev)"
    (folder / "clang++").write_text("#!/bin/sh\nread line\n[ \"$line\" != '#include <omp.h>' ]\n")
    assert torch_compile_lacks() == "clang++ has no OpenMP here (apt install g++, or libomp-dev for clang++)"


def test_a_library_is_built_once_and_again_where_its_source_changes(tmp_path, monkeypatch):
    if compiler(gcc_only=True) is None:
        pytest.skip("no g++")
    monkeypatch.setattr(cpp_build, "cache_dir", lambda: tmp_path / "cache")
    source = tmp_path / "answer.cpp"
    source.write_text('extern "C" int answer() { return 42; }')
    flags = ("-shared", "-fPIC")
    library = build([source], flags, what="the answer")
    assert ctypes.CDLL(str(library)).answer() == 42
    made = library.stat().st_mtime_ns
    assert build([source], flags, what="the answer") == library
    assert library.stat().st_mtime_ns == made
    source.write_text('extern "C" int answer() { return 43; }')
    assert build([source], flags, what="the answer") != library
    source.write_text("no C++")
    with pytest.raises(RuntimeError, match="could not build the answer"):
        build([source], flags, what="the answer")
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_several_that_need_a_library_at_once_build_it_once(tmp_path, monkeypatch):
    if compiler(gcc_only=True) is None:
        pytest.skip("no g++")
    monkeypatch.setattr(cpp_build, "cache_dir", lambda: tmp_path / "cache")
    (tmp_path / "slow-g++").write_text(
        f'#!/bin/sh\necho x >> {tmp_path}/starts\nsleep 0.3\nexec {shutil.which("g++")} "$@"\n'
    )
    (tmp_path / "slow-g++").chmod(0o755)
    monkeypatch.setenv("CXX", str(tmp_path / "slow-g++"))
    source = tmp_path / "answer.cpp"
    source.write_text('extern "C" int answer() { return 42; }')
    with ThreadPoolExecutor(3) as threads:
        made = list(threads.map(lambda _: build([source], ("-shared", "-fPIC"), what="the answer"), range(3)))
    assert len(set(made)) == 1
    assert ctypes.CDLL(str(made[0])).answer() == 42
    assert (tmp_path / "starts").read_text() == "x\n"
    assert list((tmp_path / "cache").iterdir()) == [made[0]]
