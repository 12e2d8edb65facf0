"""The learning rate's shape."""

import pytest

from slm.train.config import OptimConfig
from slm.train.optim.schedule import learning_rate

CONFIG = OptimConfig(lr=1.0, warmup_steps=10, min_lr_ratio=0.1)


def test_warm_up_is_linear_and_ends_at_the_peak():
    assert [learning_rate(CONFIG, step, step / 1000) for step in (0, 4, 9)] == pytest.approx([0.1, 0.5, 1.0])


def test_the_cosine_falls_from_the_peak_to_the_floor_over_the_run():
    assert learning_rate(CONFIG, 10, 0.0) == pytest.approx(1.0)
    assert learning_rate(CONFIG, 500, 0.5) == pytest.approx(0.55)
    assert learning_rate(CONFIG, 1000, 1.0) == pytest.approx(0.1)
    assert learning_rate(CONFIG, 2000, 1.7) == pytest.approx(0.1)


def test_it_never_rises_after_the_warm_up():
    rates = [learning_rate(CONFIG, step, step / 300) for step in range(10, 300)]
    assert rates == sorted(rates, reverse=True)


def test_the_linear_one_is_constant_and_then_falls_to_the_floor():
    config = OptimConfig(lr=1.0, warmup_steps=0, min_lr_ratio=0.0, schedule="linear", decay_fraction=0.75)
    assert [learning_rate(config, 0, done) for done in (0.0, 0.1, 0.25)] == [1.0, 1.0, 1.0]
    falling = [learning_rate(config, 9, done) for done in (0.25, 0.4, 0.6, 0.8, 1.0)]
    assert falling == sorted(set(falling), reverse=True)
    assert falling[-1] == pytest.approx(0.0)
    assert learning_rate(config, 9, 0.625) == pytest.approx(0.5)


def test_a_decay_of_no_length_is_none():
    config = OptimConfig(lr=1.0, warmup_steps=0, schedule="linear", decay_fraction=0.0)
    assert learning_rate(config, 9, 1.0) == 1.0
