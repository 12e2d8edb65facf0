"""Threads and number format of a training process. The kernels: tests/train/test_step.py."""

import pytest
import torch

from slm.machine import hardware
from train.config import TrainConfig
from train.environment import prepare


@pytest.fixture(autouse=True)
def _threads(monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "unused")
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def config(**changes) -> TrainConfig:
    return TrainConfig(**{"max_steps": 1, "seq_len": 8, "micro_batch": 1, "compile": False, "kernels": False} | changes)


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
