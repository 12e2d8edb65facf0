"""A sweep of real training runs, broken off and continued; and what is refused before anything is trained."""

import json
import os
import signal
from pathlib import Path

import pytest

from slm.data.errors import UserError
from slm.train.config import OptimConfig
from slm.train.optim.schedule import learning_rate
from slm.train.run_lock import take_lock
from slm.train.sweep import sweep
from slm.train.sweep.config import SweepOptions
from slm.train.sweep.grid import read_grid
from slm.train.sweep.planned import plan_runs
from tests.helpers.programs import Program
from tests.helpers.small_run import OPTIONS


class Starts:
    """Starts training processes from the fork server and remembers which; ``then`` is called with each name."""

    def __init__(self, then=lambda name: None):
        self.names, self._then = [], then

    def __call__(self, words, log: Path):
        name = next(word[6:-1] for word in words if word.startswith("name="))
        self.names.append(name)
        process = Program("slm.train", list(words), log.parent)
        self._then(name)
        return process


@pytest.fixture
def words(corpus, tmp_path):
    steps = ("train.max_steps=12", "train.eval_every=4", "sweep.rungs=[0.3]")
    return [*OPTIONS, f"data.files=[{corpus}]", f"runs_dir={tmp_path}/runs", "name=lr", *steps]


def last_json(capfd) -> tuple[dict, str]:
    out = capfd.readouterr().out
    return json.loads(out.splitlines()[-1]), out


def test_a_sweep_goes_on_where_it_was_and_stops_its_losers(words, tmp_path, capfd):
    grid = "optim.lr=0.02,1e-6"

    def stop_at_the_second(name: str) -> None:
        if name == "lr_1e-06":
            os.kill(os.getpid(), signal.SIGTERM)

    broken = Starts(stop_at_the_second)
    assert sweep.main([*words, grid], broken) == 143
    record, out = last_json(capfd)
    assert broken.names == ["lr_0.02", "lr_1e-06"]
    assert not record["complete"]
    assert "stopped; the same command goes on from here" in out
    assert "time: about" in out

    again = Starts()
    assert sweep.main([*words, grid], again) == 0
    record, out = last_json(capfd)
    # The first was at its rung. The second is trained that far, both are compared, and the first goes on to its end.
    assert again.names == ["lr_1e-06", "lr_0.02"]
    assert "stops here: optim.lr=1e-06" in out
    assert [each["status"] for each in record["settings"]] == ["finished", "stopped"]
    assert record["best"] == {"optim.lr": "0.02"}
    best, stopped = (each["runs"][0] for each in record["settings"])
    assert (best["step"], best["tokens"]) == (12, 12 * 4 * 32)
    assert 4 <= stopped["step"] < 12
    assert record["settings"][0]["bits_per_byte"] == best["bits_per_byte"] < stopped["bits_per_byte"]
    assert "optim.lr=0.02" in record["command"]
    assert "sweep." not in record["command"]
    folder = tmp_path / "runs/sweeps/lr"
    assert json.loads((folder / "results.json").read_text()) == record
    assert "lr_0.02" in (folder / "compare.html").read_text()
    assert any("resuming" in path.read_text() for path in (folder / "logs").glob(".slm.train-*.out"))

    # Nothing is repeated, and another sweep does not take its place.
    idle = Starts()
    assert sweep.main([*words, grid], idle) == 0
    assert idle.names == []
    with pytest.raises(UserError, match="holds a sweep with other options"):
        sweep.main([*words, "optim.warmup_steps=3", grid], idle)


def test_a_sweep_in_which_nothing_survives_a_rung_says_so(words, tmp_path):
    """Every run fails before the first comparison. A text that is missing is said before the first run."""
    broken = [word for word in words if not word.startswith("data.files=")]
    with pytest.raises(UserError, match=r"there is no file /nowhere.txt"):
        sweep.main([*broken, "data.files=[/nowhere.txt]", "optim.lr=0.1,0.2"], Starts())
    (tmp_path / "short.txt").write_text("too short")
    with pytest.raises(UserError, match=r"no run of the sweep could train: .*logs"):
        sweep.main([*broken, f"data.files=[{tmp_path / 'short.txt'}]", "optim.lr=0.1,0.2"], Starts())


def test_a_sweep_that_runs_is_not_set_aside(words, tmp_path):
    folder = tmp_path / "runs/sweeps/lr"
    folder.mkdir(parents=True)
    (folder / "sweep.json").write_text("{}")
    lock = take_lock(folder)
    try:
        with pytest.raises(UserError, match="another process"):
            sweep.main([*words, "optim.lr=0.1,0.2", "resume=never"], Starts())
    finally:
        lock.release()
    assert [each.name for each in folder.parent.iterdir()] == ["lr"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_one_line(words, tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    own = [word for word in words if not word.startswith("runs_dir=")]
    with pytest.raises(UserError, match="give runs_dir=DIR a folder that you may write to"):
        sweep.main([*own, f"runs_dir={closed}", "optim.lr=0.1,0.2"], Starts())


def test_files_with_a_comma_between_them_are_one_list(words, corpus, tmp_path, monkeypatch):
    """As for make train; of the options of data=tales none is a list of files."""
    planned = []

    def plan(grid, *_):
        planned.append(grid)
        raise UserError("enough")

    monkeypatch.setattr(sweep, "plan_runs", plan)
    own = [word for word in words if not word.startswith("data.files=")]
    with pytest.raises(UserError, match="enough"):
        sweep.main([*own, f"data.files={corpus},{corpus}", "optim.lr=0.1,0.2"], Starts())
    assert [key for key, _ in planned[0].axes] == ["optim.lr"]


def test_where_time_ends_the_runs_none_is_stopped_before(tmp_path):
    for axes in ("train.max_minutes=1,2", "optim.lr=0.1,0.2"):
        words = [*OPTIONS, axes] if "minutes" in axes else [*OPTIONS, axes, "train.max_minutes=5"]
        runs, reason = plan_runs(read_grid(words, {"train.sample_prompts"}), SweepOptions(), tmp_path)
        assert "where time ends runs" in reason
        assert runs[0].rung_steps == ()


def test_the_range_test_finds_where_the_loss_diverges(words, capfd):
    options = ["optim.lr=0.1", "sweep.range_test=true", "sweep.range_steps=30"]
    assert sweep.main([*words, *options, "sweep.range_factor=1e25"], Starts()) == 0
    record, out = last_json(capfd)
    (result,) = record["range_test"]
    assert 1e-25 < result["steepest"] < result["diverging"] < 1e25
    assert "Learning-rate range test lr-range" in out
    assert "next: " in out


def test_the_rate_of_the_range_test_grows_by_equal_factors():
    config = OptimConfig(lr=0.1, schedule="range_test", min_lr_ratio=0.01)
    rates = [learning_rate(config, step, step / 4) for step in range(5)]
    assert rates == pytest.approx([0.001, 0.01, 0.1, 1.0, 10.0])
    with pytest.raises(UserError, match="range_test needs"):
        OptimConfig(lr=0.1, schedule="range_test", min_lr_ratio=0.0)


def test_equal_tokens_for_every_batch(tmp_path):
    grid = read_grid([*OPTIONS, "train.micro_batch=2,8"], {"train.sample_prompts"})
    fixed = [word for word in grid.fixed if not word.startswith("train.micro_batch")]
    grid = type(grid)(tuple(fixed), grid.axes)
    runs, reason = plan_runs(grid, SweepOptions(tokens=6400), tmp_path)
    assert reason is None
    assert [run.steps for run in runs] == [100, 25]
    assert {run.tokens for run in runs} == {6400}
    _, reason = plan_runs(grid, SweepOptions(), tmp_path)
    assert "different numbers of tokens" in reason


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "a sweep needs an option with several values"),
        (["optim.lr=0.1,-1"], r"optim.lr must be positive, not -1.0 \(in optim.lr=-1\)"),
        (["model.d_model=256,300"], r"\(in model.d_model=300\)"),
        (["optim.lr=0.1,0.2", "sweep.range_test=true"], "tries learning rates itself"),
        (["optim.lr=0.1,0.2", "sweep.keep=0"], "sweep.keep must be above 0"),
        (["optim.lr=0.1,0.2", "sweep.rungs=[0.5,0.2]"], "sweep.rungs must be rising numbers"),
    ],
)
def test_a_bad_sweep_is_refused_before_anything_is_made(words, tmp_path, more, message):
    with pytest.raises(UserError, match=message):
        sweep.main([*words, *more], Starts())
    assert not (tmp_path / "runs").exists()
