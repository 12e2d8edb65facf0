"""A sweep's time left: right at an even speed, and it does not grow while a run sets up, validates or saves."""

import itertools

import pytest

from slm.train.sweep.time_left import TimeLeft


def run(time: TimeLeft, begin: float, *, ahead: float) -> list[float | None]:
    """A run of 100 FLOPs: 5 s of set-up, a step of 10 a second, 3 s of validation. What is shown each second."""
    shown = []
    time.start(begin, 0)
    for second in range(18):
        done = 0 if second < 5 else min(100, 10 * (second - 4))
        time.step(begin + second, done)
        shown.append(time.left(begin + second, 100 - done + 100 * ahead, ahead))
    time.end(begin + 17)
    return shown


def test_it_falls_to_what_is_left_and_never_grows():
    time = TimeLeft()
    first = run(time, 0, ahead=3)
    assert first[:6] == [None] * 6  # no speed before the second step
    second, third = (run(time, 17.0 * number, ahead=3 - number) for number in (1, 2))
    last = run(time, 51, ahead=0)
    for shown in (second, third, last):
        known = [each for each in shown if each is not None]
        assert all(later <= earlier + 1e-9 for earlier, later in itertools.pairwise(known))
    assert second[0] == pytest.approx(17 * 3, rel=0.1)
    assert third[0] == pytest.approx(17 * 2, rel=0.1)
    assert last[-1] == 0
