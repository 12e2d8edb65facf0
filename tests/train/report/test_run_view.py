"""The pieces of the view in a terminal. The whole view is drawn in test_watch.py."""

from rich.console import Console

from slm.train.report.run_view import clipped, sparkline, view
from slm.train.report.sections import tiles
from tests.helpers.run_files import training, validation, write_run


def test_a_sparkline_shows_logarithms_and_fits():
    assert sparkline([8, 4, 2, 1], 10) == "█▆▃▁"
    assert sparkline([None, 3.0, 3.0], 10) == "▁▁"
    assert len(sparkline([1.0 + index for index in range(1000)], 40)) <= 40
    assert sparkline([], 10) == ""


def test_a_long_text_is_clipped():
    console = Console(width=20)
    assert len(clipped("word " * 200, console, 3).plain.splitlines()) == 3
    assert clipped("one\n\ntwo", console, 5).plain.split() == ["one", "two"]


def test_the_coherence_of_stories_is_shown_where_it_was_measured(tmp_path):
    console = Console(width=100, record=True)
    steps = [training(1), validation(1) | {"coherence": 0.25}, training(2), validation(2) | {"coherence": 0.75}]
    run = write_run(tmp_path / "tales", steps)
    console.print(view(run, "finished", console))
    assert "0.750 of stories, 0 to 1" in console.export_text()
    assert tiles(run)[0] == {"label": "coherence", "value": "0.750", "note": "of stories, 0 to 1; highest 0.750"}
    other = write_run(tmp_path / "other", [training(1), validation(1)])
    console.print(view(other, "finished", console))
    assert "coherence" not in console.export_text()
    assert tiles(other)[0]["label"] == "bits per byte"
