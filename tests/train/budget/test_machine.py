"""The time of a step at any shape, from a few that were measured."""

from dataclasses import replace

import pytest

from slm.train.budget import machine
from slm.train.budget.machine import (
    LARGE_VOCAB,
    SAMPLED_WORDS,
    VOCAB,
    Timing,
    expected_seconds,
    measure,
    rates_of,
    spec_of,
)
from slm.train.budget.shapes import SHAPES
from slm.train.config import OptimConfig, TrainConfig

TRAIN = TrainConfig(max_steps=1, seq_len=512, micro_batch=1, kernels=False, precision="f32", threads=1)


def timing(width: int, depth: int, flops: float, head_flops: float) -> Timing:
    spec, tokens = spec_of(width, depth, VOCAB), 2048
    head = 6 * VOCAB * width
    seconds = tokens * ((spec.flops_per_token(512) - head) / flops + head / head_flops)
    update = 1e-9 * (spec.n_matmul_params - VOCAB * width) + 3e-9 * 2 * VOCAB * width
    layers = (spec_of(width, 1, VOCAB).flops_per_token(512) - head) / flops
    return Timing(
        d_model=width,
        n_layers=depth,
        vocab_size=VOCAB,
        tokens=tokens,
        pass_seconds=seconds,
        update_seconds=update,
        large_update_seconds=update + 3e-9 * 2 * (LARGE_VOCAB - VOCAB) * width,
        sampled_seconds=1024 * (layers + 6 * 2560 * width / head_flops + 2e-7),
        sampled_tokens=1024,
        sampled_words=2560,
    )


def test_rates_come_back_from_timings_and_predict_other_shapes():
    timings = [
        timing(256, 1, 3e10, 5e10),
        timing(256, 3, 3e10, 5e10),
        timing(512, 1, 4e10, 6e10),
        timing(512, 3, 4e10, 6e10),
    ]
    narrow, wide = rates_of(timings)
    assert narrow.layer_flops == pytest.approx(3e10)
    assert narrow.head_flops == pytest.approx(5e10)
    assert (wide.matrix_update, wide.table_update) == (pytest.approx(1e-9), pytest.approx(3e-9))
    found = machine.Machine((narrow, wide), 20.0, "f32", 1.0, 45.0)
    assert found.at(1024).layer_flops == wide.layer_flops
    assert narrow.layer_flops < found.at(384).layer_flops < wide.layer_flops
    shape = SHAPES[2].model_config(8192, 512, tied=False)
    expected = timing(256, 4, 3e10, 5e10).pass_seconds * 2 + 2 * 2048 * 6 * 4096 * 256 / 5e10
    update = 1e-9 * SHAPES[2].n_matrix + 3e-9 * 2 * 8192 * 256
    assert found.step_seconds(shape, 4096, 512) == pytest.approx(expected + update, rel=1e-3)
    assert narrow.sampling == pytest.approx(2e-7)
    sampled = expected - 2 * 2048 * 6 * (8192 - SAMPLED_WORDS) * 256 / 5e10 + 4096 * 2e-7
    assert found.step_seconds(shape, 4096, 512, SAMPLED_WORDS) == pytest.approx(sampled + update, rel=1e-3)
    assert found.tokens_per_s(shape, 4096, 512) == pytest.approx(4096 / (expected + update), rel=1e-3)


def test_a_wide_model_is_expected_to_take_long_to_update():
    """So that a short budget leaves it out: its time would be missing in training."""
    timings = [timing(512, 1, 4e11, 4e11), timing(512, 3, 4e11, 4e11)]
    quick = expected_seconds(timings, 1024)
    slow = [replace(each, update_seconds=1.0, large_update_seconds=1.0) for each in timings]
    sizes = [spec_of(width, 3, VOCAB).n_layer_matrix_params for width in (512, 1024)]
    assert expected_seconds(slow, 1024) > 4 * 3 * 2 * sizes[1] / sizes[0] > 10 * quick


def test_this_machine_is_measured_once(tmp_path, monkeypatch, capsys):
    """The real step in its own process, in the cache afterwards; more time measures what was left out."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(machine, "measure", lambda train, optim, seconds: measure(train, optim, 0.0))
    monkeypatch.setattr(machine, "BUSY", 0.0)
    optim = OptimConfig(name="muon", lr=0.03)
    first = machine.measured(TRAIN, optim, 5.0)
    assert "measuring how fast this machine trains" in capsys.readouterr().out
    (only,) = first.rates  # no time for a second width
    assert only.d_model == 256
    assert 1e8 < only.layer_flops < 1e13
    assert 0 <= only.sampling < 1e-3
    assert first.memory_gb_per_s > 0.1
    assert 0 < first.share < 1.5
    monkeypatch.setattr(machine, "measure", lambda *_: pytest.fail("measured twice"))
    kept = machine.measured(TRAIN, optim, 0.0)
    assert kept == first
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(machine, "BUSY", 1.1)
    busy = replace(first, limit=60.0, share=0.3)
    monkeypatch.setattr(machine, "measure", lambda *_: busy)
    assert machine.measured(TRAIN, optim, 60.0) == busy  # more time than before: measured again
    assert "the steps had 30% of its cores" in capsys.readouterr().out
    assert machine.measured(TRAIN, optim, 0.0) == first  # and not kept
