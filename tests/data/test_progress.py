"""Progress lines: how often, and what they say."""

import io
from types import SimpleNamespace

import pytest

from slm.data import progress
from slm.data.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets: ``clock[0]`` is the time in seconds."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def terminal(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stream))  # pytest puts its own into sys
    return stream


def test_a_terminal_has_one_line_that_is_cleared(clock, terminal):
    bar = Progress("reading")
    clock[0] += 0.1
    bar.update(1, 4)  # too soon
    assert terminal.getvalue() == ""
    clock[0] += 59.9
    bar.update(1, 4, "a.txt")
    bar.update(2, 4, "a.txt")  # too soon
    assert terminal.getvalue() == "\r\033[Kreading: a.txt, 25%, 3:00 left"
    bar.done()
    assert terminal.getvalue().endswith("left\r\033[K")


def test_a_file_has_a_line_every_ten_seconds(clock, capsys):
    bar = Progress("reading")
    for _ in range(9):
        clock[0] += 3.4
        bar.update(1, None, "a.txt")
    bar.done()
    assert capsys.readouterr().err == "reading: a.txt\n" * 3


def test_hours_are_written_as_hours(clock, terminal):
    bar = Progress("reading")
    clock[0] += 3600
    bar.update(0.5, 1.0, "x")
    assert terminal.getvalue().endswith("reading: x, 50%, 1:00:00 left")


def test_nothing_to_clear_is_not_cleared(clock, terminal):
    Progress("reading").done()
    assert terminal.getvalue() == ""
