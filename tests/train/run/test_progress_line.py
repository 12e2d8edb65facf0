"""The progress line moves within a step that takes long."""

from time import perf_counter

import pytest

from slm.train import autobatch
from slm.train.resolve import resolve
from slm.train.run import progress_line
from slm.train.run.progress_line import PLAIN_SECONDS
from slm.train.run.run_log import RunLog


@pytest.fixture
def log(tmp_path):
    found = RunLog(resolve(["preset=tiny"], autobatch.choose_micro_batch), tmp_path, 0, main=True, new=True)
    yield found
    found.close()


@pytest.fixture
def passed(monkeypatch):
    """A clock of seconds that a test lets pass."""
    seconds = [perf_counter()]
    monkeypatch.setattr(progress_line, "perf_counter", lambda: seconds[0])

    def let_pass(count: float) -> None:
        seconds[0] += count

    return let_pass


def test_a_long_step_is_shown_every_ten_seconds(log, passed, capsys):
    with log.doing("step 12"):
        log._progress.work.began = progress_line.perf_counter()
        for second in range(35):
            log.done(second / 100)
            log.tick()
            passed(1)
    log.tick()
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == pytest.approx(35 / PLAIN_SECONDS, abs=1)
    assert all(line.startswith("step 12: ") and "% after" in line for line in shown)


def test_a_short_step_is_not(log, capsys):
    with log.doing("step 12"):
        log.tick()
    assert capsys.readouterr().out == ""


def test_the_acknowledgement_says_how_long_it_takes(log, passed, capsys):
    with log.doing("step 3", 40.0):
        log._progress.work.began = progress_line.perf_counter()
        passed(10)
        log.stopping("Ctrl-C")
        log.done(0.5)
        log.stopping("SIGTERM")
    log.stopping("Ctrl-C")
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.startswith("Ctrl-C: stopping after step 3 (about 30 s), then saving")
    assert second.startswith("SIGTERM: stopping after step 3 (about 10 s)")
    assert third.startswith("Ctrl-C: stopping, then saving")
