"""The doctor examines this machine, and says of others what would help."""

import json
import subprocess
import sys

import pytest

from slm.doctor.advice import advice
from slm.doctor.tables import choice_rows
from tests.helpers import programs

GOOD = {
    "cpu": "Example 9000",
    "cpus": 8,
    "cores": 8,
    "fast_cores": 8,
    "smt": False,
    "hybrid": False,
    "numa_nodes": 1,
    "cpu_quota": None,
    "isa": ["AVX2", "AVX-512", "AVX512-BF16"],
    "llama_cpp": ["AVX2", "AVX512", "AVX512_BF16"],
    "llama_cpp_check": {"works": ["f32", "f16"], "fault": None, "unknown": None},
    "threads": {"train": 8, "export": 8, "serve": 8},
    "compiler": "/usr/bin/g++",
    "inductor": {"works": True, "seconds": 3.0},
    "precision": "bf16",
    "huge_pages": "madvise",
    "memory_available_gib": 14.0,
    "disk_mb_per_s": 900,
    "runs_dir": "runs",
    "load": 0.1,
    "compile_cache": "/home/a/.cache/slm/inductor",
    "kernels": None,
    "kernel_variant": "avx512bf16",
    "kernel_cache": "/home/a/.cache/slm/kernels",
}


def test_it_examines_this_machine(repository, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "slm.doctor", f"runs_dir={tmp_path / 'runs'}"],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    *_, last = done.stdout.splitlines()
    record = json.loads(last)
    assert record["cores"] >= 1
    assert record["memory_gib"] > record["memory_available_gib"] > 0
    assert record["memory_gb_per_s"] > 0.1
    for rates in record["gemm_gflops"].values():
        assert set(rates) == {str(n) for n in {1, record["threads"]["train"]}} | set(rates)
        assert all(rate > 0 for rate in rates.values())
    assert record["roofline"]["memory_read_gb_per_s"] > 0.1
    assert record["roofline"]["threads"] == record["threads"]["train"]
    if record["kernel_variant"]:
        step = record["training_step"]
        assert 0 < step["register_peak_fraction"] < 1
        assert step["gemm_peak_fraction"] > 0
        assert "forward and backward, a small model" in " ".join(done.stdout.split())
    assert record["disk_mb_per_s"] > 0
    assert record["llama_cpp"]
    assert record["llama_cpp_check"]["fault"] is None
    assert {"f16", "q8_0", "q4_0"} <= set(record["llama_cpp_check"]["works"])
    assert set(record["decode_tok_s"]) >= {"q4_0", "q4_k", "q8_0"}
    assert "decodes fastest here" in done.stdout
    assert record["versions"]["torch"]
    assert record["inductor"] is None or record["inductor"]["works"] in (True, False, None)
    for word in ("memory bandwidth", "matrix products, bf16", "threads, " + record["precision"], record["cpu"]):
        assert word in done.stdout
    assert not list(tmp_path.iterdir())  # nothing is left behind


def test_it_names_the_type_that_decodes_fastest_and_of_equals_the_better():
    rates = {"q4_0": 100.0, "iq4_nl": 60.0, "q4_k": 97.0, "q5_k": 80.0, "q6_k": 70.0, "q8_0": 50.0}
    row = dict(map(tuple, choice_rows(GOOD | {"decode_tok_s": rates})))["export"]
    assert row == "8 threads; q4_k decodes fastest here (quant=auto chooses by this machine's speeds)"
    assert dict(map(tuple, choice_rows(GOOD)))["export"] == "8 threads"


def test_a_good_machine_needs_nothing():
    assert advice(GOOD) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"compiler": None, "inductor": None}, "apt install g++"),
        ({"inductor": {"works": False, "reason": "Python.h: No such file"}}, "Python.h: No such file"),
        ({"precision": "f32"}, "AVX512-BF16 or AMX"),
        ({"huge_pages": "never"}, "echo madvise"),
        ({"numa_nodes": 2}, "make train NPROC=2"),
        ({"cpu_quota": 1.5}, "a CPU quota of 1.5 for 8 cores"),
        ({"hybrid": True, "fast_cores": 4}, "slow cores next to 4 fast ones"),
        ({"llama_cpp": ["AVX2"]}, "llama.cpp was built without AVX512-BF16"),
        ({"llama_cpp": ["AVX2"]}, "--no-cache-dir --no-deps --no-binary llama-cpp-python llama-cpp-python=="),
        ({"llama_cpp": None}, "llama-cpp-python cannot be loaded"),
        (
            {"llama_cpp_check": {"works": ["f32"], "fault": "dies with SIGSEGV when it computes f16", "unknown": None}},
            "llama.cpp dies with SIGSEGV when it computes f16: ",
        ),
        ({"disk_mb_per_s": 9}, "takes 9 MB/s"),
        ({"disk_mb_per_s": None}, "runs_dir=DIR"),
        ({"memory_available_gib": 0.9}, "less than 2 GiB"),
        ({"load": 7.0}, "other programs are busy"),
    ],
)
def test_what_is_missing_is_one_line_that_says_what_to_do(change, says):
    (line,) = advice(GOOD | change)
    assert says in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, "8 threads, bf16, own kernels for avx512bf16"),
        ({"kernels": "no AVX512-BF16"}, "8 threads, bf16, torch.compile"),
        ({"kernels": "no C++ compiler", "compiler": None, "inductor": None}, "8 threads, bf16, uncompiled"),
        ({"precision": "f32", "kernel_variant": "avx2"}, "8 threads, f32, own kernels for avx2"),
        ({"precision": "f32", "kernels": "this processor has no fma"}, "8 threads, f32, torch.compile"),
    ],
)
def test_it_says_how_training_will_run(change, says):
    assert choice_rows(GOOD | change)[0] == ["train", says]


@pytest.mark.parametrize("words", [["runs=x"], ["fast"]])
def test_an_unknown_option_is_one_line(words, tmp_path):
    errors = programs.run("slm.doctor", words, tmp_path, status=2)
    assert len(errors.strip().splitlines()) == 1


def test_it_lists_its_options(tmp_path):
    printed = programs.run("slm.doctor", ["--help"], tmp_path)
    assert "runs_dir=runs" in printed
    assert "compile=true" in printed
