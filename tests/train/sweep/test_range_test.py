"""The range test's reading of a curve whose turning points are known."""

import math

import pytest

from slm.train.sweep.range_test import RangeResult, rates_to_try, read_range, smoothed

RATES = [1e-4 * 1.1**step for step in range(100)]  # up to 1.25


def test_steepest_lowest_and_diverging():
    # The loss falls around a rate of 0.01, lies flat from 0.03, and rises from 0.3 on.
    losses = [8 - 5 / (1 + (0.01 / rate) ** 3) + 40 * max(0.0, rate - 0.3) for rate in RATES]
    result = read_range(RATES, losses, broke_off=False)
    assert 0.008 < result.steepest < 0.04  # smoothing comes some steps late
    assert 0.05 < result.lowest < 0.4
    assert 0.3 < result.diverging < 0.7
    assert result.loss == pytest.approx(3.0, abs=0.3)
    tried = rates_to_try(result)
    assert tried
    assert all(rate < result.diverging for rate in tried)


def test_a_loss_that_only_falls_does_not_diverge_unless_it_broke_off():
    losses = [8 - 0.05 * step for step in range(100)]
    assert read_range(RATES, losses, broke_off=False).diverging is None
    assert read_range(RATES, losses, broke_off=True).diverging == RATES[-1]
    assert read_range(RATES[:1], [8.0], broke_off=True) == RangeResult(None, None, RATES[0], None)
    assert rates_to_try(RangeResult(None, None, None, None)) == []


def test_the_running_mean_begins_without_a_bias():
    assert smoothed([4.0, 4.0, 4.0]) == pytest.approx([4.0, 4.0, 4.0])
    assert math.isclose(smoothed([0.0, 1.0])[1], 0.1 / 0.19)
