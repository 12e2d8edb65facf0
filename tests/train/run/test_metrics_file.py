"""Metrics survive kills, and what a resumed run will compute again is dropped."""

import json

from train.report.plot import plot_losses, smooth
from train.run import metrics_file
from train.run.progress import ProgressLine


def test_records_after_the_checkpoint_are_dropped_on_resume(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 3.0}\n{"step": 2, "loss": 2.0}\n{"step": 3, "loss": 1.0}\n{"step": 4, "lo')
    file = metrics_file.MetricsFile(path, resume_step=2)
    file.write({"step": 3, "loss": float("nan")})
    file.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0}, {"step": 3, "loss": None}]


def test_a_new_run_starts_an_empty_file(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 5, "loss": 3.0}\n')
    metrics_file.MetricsFile(path, resume_step=0).close()
    assert metrics_file.read(path) == []


def test_a_sample_does_nothing_to_the_terminal(capsys):
    progress = ProgressLine(10, 0)
    progress.print("  Once \x1b]0;title\x07\x1b[2J upon\n  a time 🦊")
    progress.close()
    assert capsys.readouterr().out == "  Once �]0;title��[2J upon\n  a time 🦊\n"


def test_the_moving_average_of_a_constant_is_that_constant():
    assert max(abs(value - 2.0) for value in smooth([2.0] * 5, 0.9)) < 1e-12
    assert smooth([3.0, 1.0], 0.0) == [3.0, 1.0]


def test_the_plot_is_a_picture_even_for_the_shortest_run(tmp_path):
    one = [{"step": 1, "tokens": 10, "loss": 3.0}]
    plot_losses([*one, {"step": 1, "tokens": 10, "val_loss": 3.1, "val_bits_per_byte": 1.5}], tmp_path / "a.png", "x")
    plot_losses(one, tmp_path / "b.png", "x")
    for name in ("a.png", "b.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    plot_losses([], tmp_path / "c.png", "x")
    assert not (tmp_path / "c.png").exists()
