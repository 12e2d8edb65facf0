"""What a run's directory says about how it ended, and the order of settings."""

from dataclasses import replace

import pytest

from slm.train.sweep.grid import Point
from slm.train.sweep.outcome import Setting, best_first, last_error, read_outcome
from slm.train.sweep.planned import PlannedRun
from tests.helpers.run_files import training, validation, write_event, write_run


def planned(root, seed=1, lr="1") -> PlannedRun:
    point = Point(root.name, (("optim.lr", lr), ("train.seed", str(seed))))
    return PlannedRun(
        point=point,
        root=root,
        words=(),
        steps=4,
        rung_steps=(2,),
        tokens_per_step=100,
        flops_per_token=6,
        minutes=None,
    )


def end(root, status, loss=2.0, **facts):
    run = write_run(root, [training(1), training(2), validation(2, loss)], config="train: {max_steps: 4}\n")
    write_event(run, {"event": "start", "step": 0, "time": 1.0})
    write_event(run, {"event": "end", "step": 2, "time": 2.0, "status": status, **facts})
    return planned(root)


def test_how_a_run_ended(tmp_path):
    assert read_outcome(planned(tmp_path / "none")).status == "waiting"
    finished = read_outcome(end(tmp_path / "a", "finished"))
    assert (finished.status, finished.step, finished.at(2), finished.at(4)) == ("finished", 2, 1.0, None)
    assert read_outcome(end(tmp_path / "b", "stopped")).status == "stopped"
    diverged = read_outcome(end(tmp_path / "c", "failed", reason="the loss is nan", error="NonFiniteError"))
    assert (diverged.status, diverged.reason) == ("diverged", "the loss is nan")
    assert read_outcome(end(tmp_path / "d", "failed", reason="disk full", error="OSError")).status == "failed"
    # Its last process was killed, or refused before it recorded anything.
    assert read_outcome(end(tmp_path / "e", "stopped"), "exit status -9").reason == "exit status -9"
    (tmp_path / "log").write_text("x\nerror: no such file\nlast words\n")
    assert last_error(tmp_path / "log") == "no such file"
    assert last_error(tmp_path / "no log") == ""


def test_the_order_of_settings_and_their_spread(tmp_path):
    def setting(status, *losses):
        runs = [end(tmp_path / f"{status}{loss}", status, loss) for loss in losses]
        return Setting(runs, [read_outcome(run) for run in runs])

    better, worse, stopped = setting("finished", 1.0, 3.0), setting("finished", 5.0), setting("stopped", 0.5)
    assert best_first([stopped, worse, better]) == [better, worse, stopped]
    early, late = setting("finished", 0.9), setting("finished", 4.0)  # patience or time ended the first
    early = Setting([replace(run, steps=400) for run in early.runs], early.outcomes)
    assert best_first([late, early]) == [early, late]
    assert better.bits_per_byte == 1.0  # half of the losses in this helper's records
    assert better.spread == pytest.approx(0.5**0.5)
    assert worse.spread is None
    assert stopped.share == 0.5
    assert [run["status"] for run in better.record()["runs"]] == ["finished", "finished"]
