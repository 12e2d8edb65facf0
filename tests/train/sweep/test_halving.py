"""The rule that stops the worse settings."""

import math

import pytest

from slm.train.sweep.outcome import deviation, mean, survivors


def test_the_better_half_goes_on_in_its_order():
    assert survivors({"a": [3.0], "b": [1.0], "c": [2.0]}, 0.5) == ["b", "c"]
    assert survivors({"a": [3.0], "b": [1.0], "c": [2.0]}, 0.3) == ["b"]
    assert survivors({"a": [3.0], "b": [1.0]}, 1.0) == ["a", "b"]


def test_seeds_count_by_their_mean_and_a_failed_one_ends_its_setting():
    assert survivors({"lucky": [1.0, 4.0], "steady": [2.0, 2.0]}, 0.5) == ["steady"]
    assert survivors({"a": [1.0, None], "b": [math.nan], "c": [9.0, 9.0]}, 0.9) == ["c"]
    assert survivors({"a": [None]}, 0.5) == []


def test_mean_and_spread():
    assert mean([1.0, 2.0]) == 1.5
    assert mean([]) == mean([1.0, None]) == math.inf
    assert deviation([1.0, 3.0]) == pytest.approx(math.sqrt(2))
    assert deviation([1.0]) is None
