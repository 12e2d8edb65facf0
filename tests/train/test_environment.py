"""Threads and number format of a training process. The kernels: tests/train/test_step.py."""

import pytest
import torch

from slm.data.errors import UserError
from slm.kernels.native import VARIANTS, Variant
from slm.machine import hardware
from slm.train.config import TrainConfig
from slm.train.environment import _named_variant, prepare


@pytest.fixture(autouse=True)
def _threads(monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "unused")
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def config(**changes) -> TrainConfig:
    return TrainConfig(**{"max_steps": 1, "seq_len": 8, "micro_batch": 1, "kernels": "eager"} | changes)


def test_the_configured_threads_win_then_the_ranks_share_then_the_machine():
    assert prepare(config(threads=2, precision="f32"), threads=3).threads == 2
    assert prepare(config(precision="f32"), threads=3).threads == 3
    assert torch.get_num_threads() == 3
    assert prepare(config(precision="f32")).threads == hardware.compute_threads()


def test_a_precision_is_measured_unless_it_is_given(monkeypatch):
    monkeypatch.setattr(hardware, "bf16_speedup", lambda: 2.0)
    measured = prepare(config())
    assert measured.precision == "bf16"
    assert any("2.0 times as fast" in note for note in measured.notes)
    agreed = prepare(config(), precision="f32")
    assert (agreed.precision, agreed.notes) == ("f32", ())
    assert not agreed.autocast()._enabled


AVX2 = VARIANTS["avx2"]


@pytest.mark.skipif(AVX2.unavailable() is not None, reason=f"kernels: {AVX2.unavailable()}")
def test_f32_trains_with_the_kernels_of_the_processor_unless_they_are_turned_off():
    chosen = prepare(config(kernels="auto", precision="f32"))
    assert chosen.kernels is not None
    assert VARIANTS[chosen.kernels.name].precision == "f32"
    assert any(VARIANTS[chosen.kernels.name].title in note for note in chosen.notes)
    assert VARIANTS[chosen.kernels.name].bits == 32, "f32 by name: no product is rounded"
    named = prepare(config(kernels="avx2"))
    assert (named.kernels.name, named.precision) == ("avx2", "f32")
    assert prepare(config(kernels=False, precision="f32")).kernels is None
    assert not prepare(config(kernels="eager", precision="f32")).compile


def test_kernels_that_the_processor_lacks_are_refused_by_name(monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    with pytest.raises(
        UserError, match=r"train\.kernels=neon: these kernels are for ARM \(aarch64\), and this processor is"
    ):
        prepare(config(kernels="neon"))
    monkeypatch.setattr(Variant, "unavailable", lambda self: "this processor has no " + self.needs[-1])
    with pytest.raises(UserError, match=r"train\.kernels=avx512bf16: this processor has no avx512_bf16"):
        prepare(config(kernels="avx512bf16"))
    without = prepare(config(kernels="auto", precision="f32"))
    assert without.kernels is None
    assert any("no training kernels: this processor has no fma" in note for note in without.notes)


def test_named_kernels_and_a_precision_may_not_disagree():
    with pytest.raises(UserError, match=r"train\.kernels=avx2 computes in f32, but train\.precision=bf16"):
        prepare(config(kernels="avx2", precision="bf16"))


@pytest.mark.parametrize(
    ("kernels", "precision", "lacks", "name"),
    [
        ("avx2", "auto", (), "avx2"),
        ("avx2", "f32", (), "avx2"),
        ("avx2", "int8", (), "avxvnniint8"),
        ("avx2", "int16", (), "avxvnniint16"),
        ("avx2", "int16", ("avx_vnni",), "avx2int16"),
        ("avx512", "int8", (), "avx512int8"),
        ("auto", "int16", (), "avx512int16"),
        ("auto", "int16", ("avx512_vnni", "avx_vnni"), "avx2int16"),
        ("auto", "bf16", (), None),
    ],
)
def test_the_instruction_set_and_the_precision_name_the_kernels(monkeypatch, kernels, precision, lacks, name):
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(Variant, "unavailable", lambda self: next((f"no {x}" for x in lacks if x in self.needs), None))
    found = _named_variant(config(kernels=kernels, precision=precision))
    assert (found and found.name) == name


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kernels": "neon", "precision": "int8"}, "train.kernels=neon computes in f32, but train.precision=int8"),
        ({"kernels": "amx", "precision": "int16"}, "train.kernels=amx computes in bf16, but train.precision=int16"),
        ({"kernels": False, "precision": "int8"}, "train.precision=int8 is computed by the training kernels"),
    ],
)
def test_precisions_without_such_kernels_are_refused(options, says):
    with pytest.raises(UserError, match=says):
        prepare(config(**options))
