"""What the probes read of the system, and that their trials leave nothing behind."""

import tempfile
import time

import torch

from slm.machine import probes


def test_instruction_sets_are_read_from_either_kind_of_processor(tmp_path):
    (tmp_path / "x86").write_text("processor : 0\nflags\t\t: fpu avx2 avx512f avx512_bf16 amx_bf16\n")
    (tmp_path / "arm").write_text("processor : 0\nFeatures\t: fp asimd bf16 i8mm\n")
    assert probes.instruction_sets(tmp_path / "x86") == ["AVX2", "AVX-512", "AVX512-BF16", "AMX-BF16"]
    assert probes.instruction_sets(tmp_path / "arm") == ["NEON", "I8MM", "BF16"]
    assert probes.instruction_sets(tmp_path / "nothing") == []


def test_a_preloaded_allocator_is_found(tmp_path):
    maps = tmp_path / "maps"
    maps.write_text("7f r-xp /usr/lib/libc.so.6\n7e r-xp /usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4.5.9\n")
    assert probes.allocator(maps) == "tcmalloc"
    maps.write_text("7f r-xp /usr/lib/libc.so.6\n")
    assert probes.allocator(maps) == "glibc"


def test_a_compiler_that_fails_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "/bin/false")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with probes.InductorTrial() as trial:
        result = trial.result(timeout=120)
    assert result["works"] is False
    assert result["reason"]
    assert list(tmp_path.iterdir()) == []


def test_a_trial_that_is_given_up_leaves_no_process_and_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with probes.InductorTrial() as trial:
        assert trial.result(timeout=0.2)["works"] is None
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_product_that_takes_long_is_timed_once(monkeypatch):
    """As in bf16 where the processor has no such instructions."""
    calls = []

    def linear(a, b):
        calls.append(a.dtype)
        time.sleep(0.02 if a.dtype == torch.bfloat16 else 0.001)

    monkeypatch.setattr(torch.nn.functional, "linear", linear)
    assert probes.gemm_gflops("bf16", 1, 0.005) < 2 * 2048 * 2048 * 768 / 0.02 / 1e9
    assert calls == [torch.bfloat16]
    probes.gemm_gflops("f32", 1, 0.02)
    assert len(calls) > 3
