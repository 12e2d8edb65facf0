"""Skips, spikes and sleeps, decided by rules that a resumed run follows, too."""

import json
import time

import pytest

from slm.data.errors import UserError
from slm.train.config import TrainConfig
from slm.train.guards import ROLLBACKS_IN_A_ROW, SKIPS_IN_A_ROW, SPIKE_WARMUP, AwakeClock, Guards, NonFiniteError


def guards(**changes) -> Guards:
    return Guards(TrainConfig(max_steps=10, seq_len=8, micro_batch=1, **changes))


def test_by_default_nothing_is_skipped_and_nothing_is_a_spike():
    mine = guards()
    assert not mine.skips(NonFiniteError("nan"))
    assert all(mine.spikes(loss) is None for loss in [2.0] * 50 + [1e9])


def test_skips_are_counted_and_too_many_in_a_row_are_an_error():
    mine = guards(on_nonfinite="skip")
    for _ in range(3):
        for _ in range(SKIPS_IN_A_ROW):
            assert mine.skips(NonFiniteError("nan"))
        mine.spikes(2.0)  # a good step between
    assert mine.skipped == 3 * SKIPS_IN_A_ROW
    for _ in range(SKIPS_IN_A_ROW):
        mine.skips(NonFiniteError("nan"))
    with pytest.raises(UserError, match="updates in a row were skipped"):
        mine.skips(NonFiniteError("nan"))


def test_a_spike_is_measured_against_the_median_and_not_before_there_is_one():
    mine = guards(spike_factor=1.5)
    assert mine.spikes(100.0) is None
    for _ in range(SPIKE_WARMUP):
        assert mine.spikes(2.0) is None
    assert mine.spikes(2.99) is None
    assert mine.spikes(3.01) == 2.0
    assert mine.spikes(3.01) == 2.0  # it did not become part of the median


def test_after_a_change_of_the_model_a_jump_is_measured_anew():
    mine = guards(spike_factor=1.5)
    for _ in range(SPIKE_WARMUP):
        mine.spikes(2.0)
    mine.forget_losses()
    for _ in range(SPIKE_WARMUP):
        assert mine.spikes(4.0) is None
    assert mine.spikes(6.1) == 4.0


def test_the_state_survives_json_and_decides_alike():
    mine, other = guards(spike_factor=1.2, on_nonfinite="skip"), guards(spike_factor=1.2, on_nonfinite="skip")
    for number in range(150):
        mine.spikes(2.0 + number % 7 / 10)
    mine.skips(NonFiniteError("nan"))
    other.load_state_dict(json.loads(json.dumps(mine.state_dict())))
    assert other.state_dict() == mine.state_dict()
    assert [mine.spikes(loss) for loss in (2.1, 2.9, 2.7)] == [other.spikes(loss) for loss in (2.1, 2.9, 2.7)]


def test_rolling_back_to_one_place_again_and_again_is_an_error():
    mine = guards(spike_factor=1.5)
    saved = mine.state_dict()
    record = {"from": 7, "to": 5, "loss": 9.0, "median": 3.0, "times": 3.0, "tokens": 64}
    for number in range(1, ROLLBACKS_IN_A_ROW + 1):
        mine.rolled_back(saved, record)
        assert len(mine.rollbacks) == number
    with pytest.raises(UserError, match=r"jumped 11 times after step 5.*resume=DIR"):
        mine.rolled_back(saved, record)
    mine.saved()
    mine.rolled_back(saved, record)


@pytest.mark.parametrize("factor", [1.0, 0.5, -2.0])
def test_a_factor_that_means_nothing_is_refused(factor):
    with pytest.raises(UserError, match=r"train\.spike_factor must be above 1"):
        guards(spike_factor=factor)


def test_sleep_is_the_distance_of_two_clocks():
    now = {"awake": 100.0, "total": 5000.0}
    clock = AwakeClock()
    awake, total = clock._awake, clock._total
    if awake == total:
        pytest.skip("this system has one clock only")
    clock = AwakeClock(lambda which: now["awake" if which == awake else "total"])
    now["awake"] += 10
    now["total"] += 10.5
    assert clock.slept() == 0.0
    now["awake"] += 1
    now["total"] += 3601
    assert clock.slept() == pytest.approx(3600.5)
    assert clock() == 111.0
    assert clock.slept() == 0.0


def test_on_a_machine_that_is_awake_no_sleep_is_seen():
    clock = AwakeClock()
    began = clock()
    time.sleep(0.05)
    assert clock() - began >= 0.05
    assert clock.slept() == 0.0
