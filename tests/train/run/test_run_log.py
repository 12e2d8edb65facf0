"""A run's lines in a terminal, and its logs. Whole runs: tests/train/test_main.py, tests/train/test_reliability.py."""

import json

import pytest

from slm.train import autobatch
from slm.train.predict.forecast import Outlook
from slm.train.resolve import resolve
from slm.train.run.progress_line import ProgressLine
from slm.train.run.run_log import LOGS, RunLog


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


def test_a_run_that_time_ends_shows_its_share_and_where_it_will_end(capsys):
    progress = ProgressLine(4000, 0)
    record = {"step": 1200, "loss": 2.0, "tokens_per_s": 5000.0, "rss_gb": 1.0, "elapsed_s": 30.0, "limit_s": 60.0}
    progress.update(record, 30.0, Outlook(1.5, 1.4, 1.6, "bits per byte"))
    out = capsys.readouterr().out
    assert out.startswith("step 1,200 (50%)  loss 2.000")
    assert out.endswith("ETA 0:30  at the end 1.500 ± 0.100 bits per byte\n")


def test_a_run_that_steps_end_before_its_time_shows_them(capsys):
    progress = ProgressLine(1300, 0)
    record = {"step": 1200, "loss": 2.0, "tokens_per_s": 5000.0, "rss_gb": 1.0, "elapsed_s": 30.0, "limit_s": 60.0}
    progress.update(record, 3.0)
    assert capsys.readouterr().out.startswith("step 1,200/1,300  loss 2.000")


def test_the_forecast_is_in_the_metrics_and_goes_on_after_a_resume(tmp_path):
    config = resolve(["preset=tiny", "train.max_steps=100"], autobatch.choose_micro_batch)
    per_step = config.train.tokens_per_step

    def record(step: int) -> dict:
        figures = {"step": step, "tokens": step * per_step, "loss": 6 / step**0.3, "lr": config.optim.lr}
        return figures | {"tokens_per_s": float(per_step), "rss_gb": 1.0, "elapsed_s": float(step)}

    log = RunLog(config, tmp_path, 0, main=True, new=True)
    for step in range(1, 31):
        log.training(record(step), 100.0 - step)
    log.close()
    log = RunLog(config, tmp_path, 30, main=True, new=False)
    log.validation({"step": 30, "tokens": 30 * per_step, "val_loss": 2.1, "val_bits_per_byte": 0.9})
    log.training(record(31), 69.0)
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert not any("forecast" in key for each in lines[:14] for key in each)  # not 15 % done
    assert 1 < lines[29]["forecast_nats_per_token"] < lines[29]["loss"]
    assert lines[-1]["forecast_bits_per_byte_low"] < lines[-1]["forecast_bits_per_byte"] < 0.9


def test_samples_after_the_checkpoint_are_dropped_where_the_run_goes_on_from_it(tmp_path):
    lines = [{"step": step, "val_loss": 2.0, "val_bits_per_byte": 1.0, "tokens": step} for step in (4, 8, 12)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    first = "## step 4\n\nOnce\n\n## step 999\n\nwrote the model\n\n"
    (tmp_path / "samples.md").write_text(first + "## step 8\n\nupon\n\n## step 12\n\na time\n\n")
    config = resolve(["preset=tiny"], autobatch.choose_micro_batch)
    log = RunLog(config, tmp_path, 8, main=True, new=False)
    assert (tmp_path / "samples.md").read_text() == first + "## step 8\n\nupon\n\n"
    log.rewind(4)
    assert (tmp_path / "samples.md").read_text() == first
    log.close()
