"""What cards and progress bars show of a run's files."""

import json

import pytest

from slm.studio import run_files
from tests.studio.conftest import *  # noqa: F403


def test_the_summary_of_a_run(workspace):
    found = run_files.summary(workspace / "runs" / "notes")
    assert (found["kind"], found["n_params"], found["bits_per_byte"], found["step"]) == ("run", 1234567, 1.25, 8)
    assert found["files"] == ["texts"]
    assert found["curve"][0] == 3.75
    assert run_files.samples(workspace / "runs" / "notes") == [
        {"step": 8, "text": "Once <b>upon</b> a time", "bits_per_byte": 1.25}
    ]


@pytest.mark.parametrize(
    ("options", "record", "share", "left"),
    [
        ("{max_steps: 100}", {"step": 25, "elapsed_s": 10.0}, 0.25, 30.0),
        ("{max_steps: 1000, max_minutes: 1}", {"step": 25, "elapsed_s": 30.0}, 0.5, 30.0),
        ("{max_steps: 1000, max_minutes: 1}", {"step": 25, "elapsed_s": 10.0, "limit_s": 40.0}, 0.25, 30.0),
    ],
)
def test_progress_is_by_steps_or_by_time(tmp_path, options, record, share, left):
    assert run_files.progress(tmp_path) == {}
    (tmp_path / "config.yaml").write_text(f"train: {options}\n")
    line = json.dumps({"lr": 0.1, "loss": 2.0, **record})
    (tmp_path / "metrics.jsonl").write_text(f'{line}\n{{"step": 25, "val_loss": 2.0}}\n{{"step": 2')
    found = run_files.progress(tmp_path)
    assert (found["share"], found["left_s"], found["loss"]) == (pytest.approx(share), pytest.approx(left), 2.0)
