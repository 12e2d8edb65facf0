"""Kernels are tried in a child process before first use: what dies or computes garbage is left out, and named."""

import json
import platform
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from slm.kernels import choice, self_check
from slm.kernels import step_rate as speed
from slm.kernels.native import VARIANTS, Kernels, Variant, variants_for
from slm.kernels.self_check import SHAPE
from slm.kernels.step_rate import gain, step_rate
from slm.machine import crashes
from tests.helpers.kernels import NAMES, kernels_for_test

AVX2 = VARIANTS["avx2"]
needs_avx2 = pytest.mark.skipif(AVX2.unavailable() is not None, reason=f"kernels: {AVX2.unavailable()}")


@pytest.mark.parametrize("name", NAMES)
def test_right_kernels_are_far_inside_the_bound(name):
    kernels = kernels_for_test(name)
    assert self_check.distance(kernels) < self_check.allowed(VARIANTS[name]) / 2


@pytest.mark.parametrize(
    "name", ["avx2", "avx2int16", "avxvnniint16", "avxvnniint8", "avx512int16", "avx512int8", "amx"]
)
def test_kernels_that_drop_a_store_are_seen(name):
    kernels = kernels_for_test(name)
    right = kernels.slm_linear

    def forgetful(x, m, k, packed, n, residual, out):
        right(x, m, k, packed, n, residual, out)
        out[-1] = 0  # the last row

    kernels.slm_linear = forgetful
    try:
        assert self_check.distance(kernels) > self_check.allowed(VARIANTS[name])
    finally:
        kernels.slm_linear = right


@pytest.fixture
def cache(monkeypatch, tmp_path) -> Path:
    """A separate library without a known trial."""
    library = tmp_path / "kernels.so"
    library.touch()
    monkeypatch.setattr(Variant, "build", lambda self: library)
    monkeypatch.setattr(choice, "load", lambda name: None)
    return library.with_suffix(".trial.json")


def python_that(monkeypatch, tmp_path, command: str) -> Path:
    """Children of this process run a shell command instead of Python; the file counts how often."""
    count, script = tmp_path / "count", tmp_path / "python"
    script.write_text(f"#!/bin/sh\necho x >> {count}\n{command}\n")
    script.chmod(0o755)
    monkeypatch.setattr(crashes.sys, "executable", str(script))
    return count


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("kill -ILL $$", "die with SIGILL"),
        ("kill -SEGV $$", "die with SIGSEGV"),
        ("""echo '{"right": false, "error": 0.7}'""", "compute wrong gradients (off by 70% of their size)"),
        ("""echo '{"right": false, "error": NaN}'""", "compute wrong gradients"),
        ("""echo '{"right": true, "error": 0.01}'""", None),
    ],
)
def test_the_trials_answer_is_kept(monkeypatch, tmp_path, cache, command, says):
    count = python_that(monkeypatch, tmp_path, command)
    for _ in range(2):
        found = choice.fault(AVX2)
        assert found is None if says is None else says in found
    assert count.read_text() == "x\n"
    assert json.loads(cache.read_text()) == {"fault": found}


@pytest.mark.parametrize("command", ["kill -TERM $$", "exit 3", "echo nothing"])
def test_a_trial_without_an_answer_is_made_again(monkeypatch, tmp_path, cache, command):
    count = python_that(monkeypatch, tmp_path, command)
    assert choice.fault(AVX2) is None
    assert choice.fault(AVX2) is None
    assert count.read_text() == "x\nx\n"
    assert not cache.exists()


def test_kernels_that_cannot_be_built_are_named(monkeypatch):
    def build(self):
        raise RuntimeError("g++ could not build the training kernels: no space\nleft")

    monkeypatch.setattr(Variant, "build", build)
    assert choice.fault(AVX2) == "cannot be built (g++ could not build the training kernels: no space left)"


def test_the_fastest_kernels_that_work_are_chosen(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(
        Variant, "unavailable", lambda self: None if self.precision == "bf16" else "this is no test of f32"
    )
    faults = {"amx": "die with SIGILL", "avx512bf16": None}
    monkeypatch.setattr(choice, "fault", lambda variant: faults[variant.name])
    chosen, reason = choice.choose("bf16")
    assert chosen == VARIANTS["avx512bf16"]
    assert reason == "those for AMX die with SIGILL"
    faults["amx"] = None
    assert choice.choose("bf16") == (VARIANTS["amx"], None)
    faults.update({"amx": "die with SIGILL", "avx512bf16": "die with SIGBUS"})
    assert choice.choose("bf16") == (None, "those for AMX die with SIGILL; those for AVX512-BF16 die with SIGBUS")
    assert choice.choose("f32") == (None, "this is no test of f32")


UNTIMED = replace(AVX2, timed=False)


@pytest.mark.parametrize(
    ("measured", "says"),
    [(1.2, None), (1.19, "those for AVX2 (f32) are 1.19 times as fast as PyTorch, not 1.2 times (train.kernels=avx2")],
)
def test_kernels_of_unknown_speed_have_to_beat_pytorch_here(monkeypatch, tmp_path, cache, measured, says):
    monkeypatch.setattr(choice, "variants_for", lambda precision: [UNTIMED])
    monkeypatch.setattr(Variant, "unavailable", lambda self: None)
    count = python_that(monkeypatch, tmp_path, f"""echo '{{"right": true, "error": 0.01, "gain": {measured}}}'""")
    for _ in range(2):
        chosen, reason = choice.choose("f32")
        assert chosen is (None if says else UNTIMED)
        assert reason is None if says is None else says in reason
    assert count.read_text() == "x\nx\n", "one child for right and wrong, one for the speed"
    assert json.loads(cache.with_name(f"kernels.gain-{torch.get_num_threads()}.json").read_text())["gain"] == measured


def test_kernels_that_could_not_be_timed_are_timed_again(monkeypatch, tmp_path, cache):
    count = python_that(monkeypatch, tmp_path, "exit 3")
    assert choice.slowness(UNTIMED) == choice.slowness(UNTIMED) == "could not be timed"
    assert count.read_text() == "x\nx\n"


class Whole:
    """Kernels with products of integers that are this many times as fast as f32 here."""

    def __init__(self, gain: float) -> None:
        self.gain, self.asked = gain, 0

    def integer_gain(self) -> float:
        self.asked += 1
        return self.gain


@pytest.mark.parametrize(("measured", "chosen"), [(1.2, "avx2int16"), (1.19, "avx2")])
def test_products_of_integers_have_to_be_faster_here(monkeypatch, cache, measured, chosen):
    monkeypatch.setattr(choice, "variants_for", lambda precision: [VARIANTS["avx2int16"], AVX2])
    monkeypatch.setattr(Variant, "unavailable", lambda self: None)
    monkeypatch.setattr(choice, "fault", lambda variant: None)
    kernels = Whole(measured)
    monkeypatch.setattr(choice, "load", lambda name: kernels)
    for _ in range(2):
        found, reason = choice.choose("f32")
        assert found is not None
        assert found.name == chosen
        assert (reason is None) == (chosen == "avx2int16")
    assert kernels.asked == 1, "the rate is kept"
    assert (
        reason is None
        or "are 1.19 times as fast as f32 here, not 1.2 times (train.kernels=avx2 train.precision=int16" in reason
    )
    assert choice.choose("f32", bits=32) == (AVX2, None)


@needs_avx2
def test_the_rate_of_integers_is_measured():
    assert 0.2 < kernels_for_test("avx2int16").integer_gain() < 5
    for name in ("avxvnniint8", "avxvnniint16", "avx512int8", "avx512int16"):
        assert kernels_for_test(name).integer_gain() > 0
    assert kernels_for_test("avx2").integer_gain() == 1


@pytest.mark.parametrize(("bits", "chosen"), [(8, "avx512int8"), (16, "avx512int16"), (32, "avx512")])
def test_integers_have_as_many_bits_as_are_asked_for(monkeypatch, bits, chosen):
    monkeypatch.setattr(
        choice, "variants_for", lambda precision: [v for v in VARIANTS.values() if v.precision == "f32"]
    )
    monkeypatch.setattr(Variant, "unavailable", lambda self: None)
    monkeypatch.setattr(choice, "fault", lambda variant: None)
    monkeypatch.setattr(choice, "dull_integers", lambda variant: None)
    found, reason = choice.choose("f32", bits=bits)
    assert found is not None
    assert (found.name, reason) == (chosen, None)


def test_each_kind_of_processor_has_its_own_kernels(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    assert [each.name for each in variants_for("f32")] == ["neon"]
    assert choice.choose("bf16") == (None, "there are none in bf16 for aarch64 under Linux")
    assert AVX2.unavailable() == "these kernels are for x86-64, and this processor is aarch64"
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    in_f32 = ["avx512int8", "avx512int16", "avx512", "avxvnniint8", "avxvnniint16", "avx2int16", "avx2"]
    assert [each.name for each in variants_for("f32")] == in_f32
    assert VARIANTS["neon"].unavailable() == "these kernels are for ARM (aarch64), and this processor is x86_64"
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert AVX2.unavailable() == "the training kernels are for Linux, and this is Darwin"


@needs_avx2
@pytest.mark.parametrize("name", ["avx2", "avx2int16"])
def test_the_real_kernels_pass_their_real_trial(name):
    assert choice._try_it(name) == (True, None)


@needs_avx2
def test_the_kernels_rate_counts_operations_and_tokens_alike():
    shape = replace(
        SHAPE, n_layers=1, conv_layers=(), d_model=64, n_heads=2, n_kv_heads=1, head_dim=32, ffn_dim=96, vocab_size=160
    )
    found = step_rate("avx2", 1, shape)
    assert (found["kernels"], found["threads"]) == ("avx2", 1)
    assert found["gflops"] * 1e9 == pytest.approx(found["tokens_per_s"] * shape.flops_per_token(shape.seq_len))
    assert found["gflops"] > 0.1


@needs_avx2
def test_the_gain_is_pytorchs_time_by_the_kernels(monkeypatch):
    times = iter([6.0, 2.0])

    def seconds(step):
        step()
        return next(times)

    monkeypatch.setattr(speed, "_least_seconds", seconds)
    assert gain("avx2", 1, SHAPE) == pytest.approx(3)


def test_amx_needs_linuxs_permission(monkeypatch):
    from slm.kernels import native

    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    amx = VARIANTS["amx"]
    monkeypatch.setattr(native, "cpu_flags", lambda: frozenset(amx.needs))
    monkeypatch.setattr(native, "_tiles_permitted", lambda: False)
    assert amx.unavailable() == "Linux does not give this process AMX's tiles"
    assert replace(amx, name="other").unavailable() != "Linux does not give this process AMX's tiles"
    monkeypatch.setattr(native, "cpu_flags", lambda: frozenset(amx.needs) - {"amx_bf16"})
    assert amx.unavailable() == "this processor has no amx_bf16"


@needs_avx2
def test_a_library_that_cannot_be_loaded_is_a_fault(monkeypatch, cache):
    """The cache's folder allows no programs (noexec), or a power cut has left an empty file."""
    monkeypatch.undo()
    library = cache.with_suffix("").with_suffix(".so")
    monkeypatch.setattr(Variant, "build", lambda self: library)
    monkeypatch.setattr(choice, "load", lambda name: Kernels(library, name))
    cache.write_text(json.dumps({"fault": None}))
    assert choice.fault(AVX2).startswith("cannot be loaded (")
    chosen, why = choice.choose("f32")
    assert chosen is None
    assert "cannot be loaded" in why
