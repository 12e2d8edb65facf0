"""A loss that jumps: what it is measured against, and how often a run goes back."""

import json

import pytest

from slm.data.errors import UserError
from slm.train.components.spike_guard import ROLLBACKS_IN_A_ROW, WARMUP, SpikeGuard
from slm.train.config import TrainConfig

JUMP = {"from": 7, "to": 5, "loss": 9.0, "median": 3.0, "times": 3.0, "tokens": 64}


def test_a_spike_is_measured_against_the_median_and_not_before_there_is_one():
    mine = SpikeGuard(1.5)
    assert mine.jumped(100.0) is None
    for _ in range(WARMUP):
        assert mine.jumped(2.0) is None
    assert mine.jumped(2.99) is None
    assert mine.jumped(3.01) == 2.0
    assert mine.jumped(3.01) == 2.0  # it did not become part of the median


def test_after_a_change_of_the_model_a_jump_is_measured_anew():
    mine = SpikeGuard(1.5)
    for _ in range(WARMUP):
        mine.jumped(2.0)
    mine.forget_losses()
    for _ in range(WARMUP):
        assert mine.jumped(4.0) is None
    assert mine.jumped(6.1) == 4.0


def test_the_state_survives_json_and_decides_alike():
    mine, other = SpikeGuard(1.2), SpikeGuard(1.2)
    for number in range(150):
        mine.jumped(2.0 + number % 7 / 10)
    mine.rolled_back(JUMP, mine.state_dict())
    other.load_state_dict(json.loads(json.dumps(mine.state_dict())))
    assert other.state_dict() == mine.state_dict()
    assert [mine.jumped(loss) for loss in (2.1, 2.9, 2.7)] == [other.jumped(loss) for loss in (2.1, 2.9, 2.7)]


def test_rolling_back_to_one_place_again_and_again_is_an_error():
    mine = SpikeGuard(1.5)
    saved = mine.state_dict()
    for number in range(1, ROLLBACKS_IN_A_ROW + 1):
        mine.rolled_back(JUMP, saved)
        assert mine.record() == {"rollbacks": number}
    with pytest.raises(UserError, match=r"jumped 11 times after step 5.*resume=DIR"):
        mine.rolled_back(JUMP, saved)
    mine.rolled_back(JUMP | {"to": 6}, saved)  # a checkpoint was saved since


@pytest.mark.parametrize("factor", [1.0, 0.5, -2.0])
def test_a_factor_that_means_nothing_is_refused(factor):
    with pytest.raises(UserError, match=r"train\.spike_factor must be above 1"):
        TrainConfig(max_steps=10, seq_len=8, micro_batch=1, spike_factor=factor)
