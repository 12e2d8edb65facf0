"""A build of llama.cpp that dies or computes garbage is found before a command uses it, and the answer is kept."""

import json
import os
import subprocess
import sys
import time

import pytest

from slm.data.errors import UserError
from slm.llama import verdict
from tests.helpers import REPOSITORY, broken_llama

EXAMINE = "import json; from dataclasses import asdict; from slm.llama import verdict; v = verdict.examine()"


def examine(environment):
    """What a separate process finds, as JSON, with its ``fault``."""
    done = subprocess.run(
        [sys.executable, "-c", f"{EXAMINE}; print(json.dumps(asdict(v) | {{'fault': v.fault}}))"],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.fixture
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "slm" / "llama"


def test_this_machines_build_works_and_is_tried_once(own_cache, monkeypatch):
    found = verdict.examine()
    assert found.fault is None
    assert found.unknown is None
    assert {"f16", "q8_0", "q4_0", "q4_k_m", "iq4_xs"} <= set(found.works)
    (kept,) = own_cache.iterdir()
    monkeypatch.setattr(verdict, "_try_it", lambda: pytest.fail("tried again"))
    began = time.perf_counter()
    assert verdict.examine() == found
    verdict.require_working_build()
    assert time.perf_counter() - began < 0.5
    kept.write_text("{}")  # a damaged answer is none
    with pytest.raises(pytest.fail.Exception, match="tried again"):
        verdict.examine()


def test_another_build_or_processor_is_tried_again(own_cache, monkeypatch, tmp_path):
    library = tmp_path / "libllama.so"
    library.write_bytes(b"one build")
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path))
    assert verdict.libraries() == [library]
    first = verdict._cache_file()
    assert verdict._cache_file() == first
    os.utime(library, ns=(1, 1))
    second = verdict._cache_file()
    monkeypatch.setattr(verdict, "cpu_flags", lambda: frozenset({"amx_tile"}))
    assert len({first, second, verdict._cache_file()}) == 3


def test_a_build_that_dies_is_found_out_by_its_signal(tmp_path):
    environment = broken_llama.environment(tmp_path, broken_llama.DIES)
    found = examine(environment)
    assert (found["failed"], found["signal"], found["works"]) == ("q8_0", "SIGSEGV", ["f32", "f16"])
    assert found["fault"].startswith("dies with SIGSEGV when it computes q8_0")
    assert list((tmp_path / "cache" / "slm" / "llama").iterdir())
    assert examine(environment | {"LD_PRELOAD": ""}) == found  # kept: the libraries and the processor are the same


def test_a_build_that_computes_garbage_is_found_out(tmp_path):
    found = examine(broken_llama.environment(tmp_path, broken_llama.GARBAGE))
    assert (found["failed"], found["signal"], found["works"]) == ("q8_0", None, ["f32", "f16"])
    assert found["error"] > 0.5
    assert found["fault"].startswith("computes garbage in q8_0")


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("export", ["run={folder}"]),
        ("slm.export.bench", ["run={folder}"]),
        ("slm.evaluate", ["run={folder}", "eval.checkpoint=false", "eval.files=[{tiny}]"]),
        ("serve", ["model={tiny}", "port=0"]),
        ("slm.serve.bench", ["model={tiny}"]),
        ("slm.serve.terminal", ["model={tiny}", "prompt=x"]),
    ],
)
def test_every_command_refuses_such_a_build_in_one_line(module, words, tiny_path, tmp_path):
    environment = broken_llama.environment(tmp_path, broken_llama.DIES)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "config.yaml").write_text("{}")
    words = [word.format(folder=tmp_path, tiny=tiny_path) for word in words]
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert "dies with SIGSEGV when it computes q8_0" in line
    assert "-m slm.llama.rebuild builds it again" in line


def test_no_command_loads_llama_cpp_before_it_is_watched():
    """A build may die when it is loaded."""
    commands = [
        "slm.export.__main__",
        "slm.export.bench.__main__",
        "slm.evaluate.__main__",
        "slm.evaluate.exam.__main__",
    ]
    commands += ["slm.serve.__main__", "slm.serve.bench.__main__", "slm.serve.terminal", "slm.doctor"]
    code = f"import sys, {', '.join(commands)}; sys.exit('llama_cpp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, timeout=120).returncode == 0


def lines(*records):
    return "\n".join(json.dumps(record) for record in records)


BUILT = {"features": ["AVX512", "AMX_INT8"]}
F32 = {"type": "f32", "right": True}


@pytest.mark.parametrize(
    ("output", "status", "fault"),
    [
        ("", -4, "dies with SIGILL when it is loaded"),
        (lines(BUILT, {"begins": "f32"}), -11, "dies with SIGSEGV when it computes f32 (AMX is suspected)"),
        (
            lines({"features": ["AVX512"]}, {"begins": "f32"}, F32, {"begins": "q4_0"}),
            -6,
            "q4_0 (AVX-512 is suspected)",
        ),
        (lines(BUILT, {"type": "f32", "right": False}), 0, "computes garbage in f32 (AMX is suspected)"),
        (lines(BUILT, {"type": "f32", "right": False}), -11, "computes garbage in f32"),  # and dies later
    ],
)
def test_what_the_trial_printed_says_what_is_wrong(output, status, fault):
    found = verdict.read_trial(output, status, "")
    assert found.fault is not None
    assert fault in found.fault


@pytest.mark.parametrize("status", [-9, -15, -2, 1])
def test_a_trial_that_was_stopped_from_outside_or_could_not_run_says_nothing(status, own_cache, monkeypatch):
    found = verdict.read_trial(lines(BUILT, {"begins": "f32"}), status, "Traceback\nOSError: no room\n")
    assert found.fault is None
    assert found.unknown
    monkeypatch.setattr(verdict, "_try_it", lambda: found)
    verdict.require_working_build()
    assert not own_cache.exists()


def test_a_folder_that_cannot_be_written_is_no_obstacle(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    bad = verdict.Verdict(works=[], features=None, failed="q4_0", signal="SIGSEGV")
    monkeypatch.setattr(verdict, "_try_it", lambda: bad)
    with pytest.raises(UserError, match="q4_0"):
        verdict.require_working_build()
