"""A run's lines in a terminal, and its logs. Whole runs: tests/train/test_main.py, tests/train/test_reliability.py."""

import json

import pytest

from train import autobatch
from train.resolve import resolve
from train.run.run_log import LOGS, ProgressLine, RunLog


def test_a_sample_does_nothing_to_the_terminal(capsys):
    progress = ProgressLine(10, 0)
    progress.print("  Once \x1b]0;title\x07\x1b[2J upon\n  a time 🦊")
    progress.close()
    assert capsys.readouterr().out == "  Once �]0;title��[2J upon\n  a time 🦊\n"


@pytest.mark.parametrize("new", [True, False])
def test_only_a_run_without_a_checkpoint_begins_its_logs(new, tmp_path):
    """What lies there was left by a start that died before its first checkpoint."""
    config = resolve(["preset=tiny"], autobatch.choose_micro_batch)
    record = json.dumps({"event": "start", "step": 0, "time": 1.0}) + "\n"
    for name in LOGS:
        (tmp_path / name).write_text(record)
    log = RunLog(config, tmp_path, 0, main=True, new=new)
    log.close()
    texts = {name: (tmp_path / name).read_text() if (tmp_path / name).exists() else "" for name in LOGS}
    assert texts == dict.fromkeys(LOGS, "" if new else record)
