"""The record of a run, read from its files."""

import json
import os

import pytest

from slm.data.errors import UserError
from slm.train.report.run_record import RunRecord, find_run
from tests.helpers.run_files import training, validation, write_event, write_run


def test_validations_that_go_back_are_kept_from_there(tmp_path):
    run = write_run(
        tmp_path / "back",
        [training(1), validation(2), validation(4), training(3), validation(3)],
    )
    assert [each.step for each in run.validations] == [2, 3]


def test_a_run_knows_when_time_ends_it_and_what_it_will_give(tmp_path):
    forecast = {"forecast_bits_per_byte": 1.5, "forecast_bits_per_byte_low": 1.4, "forecast_bits_per_byte_high": 1.6}
    config = "train: {max_steps: 1000, max_minutes: 1}\n"
    run = write_run(tmp_path / "run", [training(1), training(100, limit_s=40.0, **forecast)], config=config)
    assert run.progress() == 0.25  # 10 of 40 seconds of training: the rest of the minute is set-up and the end
    assert run.forecast() == "1.500 bits per byte of the validation text (1.400 to 1.600)"
    plain = write_run(tmp_path / "plain", [training(100)], config=config)
    assert (plain.progress(), plain.forecast()) == (pytest.approx(1 / 6), None)


def test_what_follows_from_the_files(tmp_path):
    found = [*(training(step) for step in range(1, 41)), validation(20, 0.5), validation(40, 0.7)]
    run = write_run(tmp_path / "run", found)
    assert (run.step(), run.tokens(), run.elapsed()) == (40, 4000, 4.0)
    assert run.progress() == 0.4
    assert run.seconds_left() == pytest.approx(6.0)
    assert run.recent("loss") == pytest.approx(sum(1 + 5 / step for step in range(21, 41)) / 20)
    assert run.recent_note("loss") == "mean of the last 20 records"
    assert run.speed() == 1000
    assert run.best() == run.validations[0]
    assert run.best().elapsed_s == 4.0
    assert run.setting("train.max_steps") == 100
    assert run.setting("train.nothing", 7) == 7
    assert not run.update()
    assert [sorted(each) for each in run.plot_records()[-2:]] == [["tokens", "val_bits_per_byte", "val_loss"]] * 2
    # A run that has an event log but no end was killed; one of a version without an event log was stopped.
    assert run.status() == "stopped"
    write_event(run, {"event": "start", "step": 0, "time": 1.0, "n_params": 3})
    assert (run.status(), run.status(held=True)) == ("gone", "running")
    assert run.model_facts() == {"n_params": 3}
    write_event(run, {"event": "end", "step": 40, "time": 2.0, "status": "finished"})
    assert run.status() == "finished"


def test_a_run_is_found_by_its_directory_a_checkpoint_or_as_the_latest(tmp_path):
    for age, name in enumerate(("new", "old")):
        run = write_run(tmp_path / name, [training(1)])
        os.utime(run.root / "metrics.jsonl", (1e9 - age, 1e9 - age))
    checkpoint = tmp_path / "old" / "checkpoints" / "step-00000001"
    checkpoint.mkdir(parents=True)
    for path, name in ((tmp_path / "old", "old"), (checkpoint, "old"), (tmp_path / "latest", "new")):
        assert find_run(str(path)) == (tmp_path / name).resolve()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(UserError, match="is no training run"):
        find_run(str(tmp_path / "model"))


@pytest.mark.parametrize(("n", "note"), [(0, "no records yet"), (1, "1 record"), (3, "mean of the last 3 records")])
def test_a_mean_says_of_how_many_records_it_is(tmp_path, n, note):
    lines = [json.dumps({"step": step, "tokens": step, "loss": 1.0, "lr": 0.1}) for step in range(1, n + 1)]
    (tmp_path / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))
    run = RunRecord(tmp_path)
    run.update()
    assert run.recent_note("loss") == note
