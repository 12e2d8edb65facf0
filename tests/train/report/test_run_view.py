"""The pieces of the view in a terminal. The whole view is drawn in test_watch.py."""

from rich.console import Console

from slm.train.report.run_view import clipped, sparkline


def test_a_sparkline_shows_logarithms_and_fits():
    assert sparkline([8, 4, 2, 1], 10) == "█▆▃▁"
    assert sparkline([None, 3.0, 3.0], 10) == "▁▁"
    assert len(sparkline([1.0 + index for index in range(1000)], 40)) <= 40
    assert sparkline([], 10) == ""


def test_a_long_text_is_clipped():
    console = Console(width=20)
    assert len(clipped("word " * 200, console, 3).plain.splitlines()) == 3
    assert clipped("one\n\ntwo", console, 5).plain.split() == ["one", "two"]
