"""Skipped updates, decided by rules that a resumed run follows, too, and sleeps."""

import json
import time

import pytest

from slm.data.errors import UserError
from slm.train.guards import SKIPS_IN_A_ROW, AwakeClock, NonFiniteError, Skips


def test_by_default_nothing_is_skipped():
    assert not Skips(on=False).skips(NonFiniteError("nan"))


def test_skips_are_counted_and_too_many_in_a_row_are_an_error():
    mine = Skips(on=True)
    for _ in range(3):
        for _ in range(SKIPS_IN_A_ROW):
            assert mine.skips(NonFiniteError("nan"))
        mine.updated()
    assert mine.count == 3 * SKIPS_IN_A_ROW
    for _ in range(SKIPS_IN_A_ROW - 1):
        mine.skips(NonFiniteError("nan"))
    resumed = Skips(on=True)
    resumed.load_state_dict(json.loads(json.dumps(mine.state_dict())))
    resumed.skips(NonFiniteError("nan"))
    with pytest.raises(UserError, match="updates in a row were skipped"):
        resumed.skips(NonFiniteError("nan"))


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
