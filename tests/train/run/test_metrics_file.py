"""Metrics survive kills, and what a resumed run will compute again is dropped."""

import json

from slm.train.run import metrics_file


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
