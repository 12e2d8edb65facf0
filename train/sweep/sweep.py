"""``make sweep``: the grid is checked, trained as far as each run deserves, and reported.

A sweep lives in ``<runs_dir>/sweeps/<name>``: ``sweep.json`` (what it is), a run's directory for each point,
``logs/``, ``results.json`` and ``compare.html``. The same command goes on where it was: what is finished is not
repeated, a run that was broken off resumes from its checkpoint, and values may be added to the grid.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slm.command.option_names import options as option_defaults
from slm.configuration import load, to_dict
from slm.data.account.listing import check_files
from slm.data.errors import UserError
from slm.report import atomic_write_json, duration, final_json
from slm.train.report.html import MOST_RUNS as MOST_COMPARED
from slm.train.report.html import write_report
from slm.train.report.run_record import RunRecord
from slm.train.run.run_directory import back_up
from slm.train.run_lock import RunLock, take_lock
from slm.train.sweep.config import SweepConfig
from slm.train.sweep.execute import Execution, Interrupted, Start, guess_flops_per_s, start_training
from slm.train.sweep.grid import Grid, Values, describe, read_grid
from slm.train.sweep.outcome import Setting, best_first
from slm.train.sweep.planned import PlannedRun, plan_runs
from slm.train.sweep.range_test import RangeResult, rates_to_try, read_range
from slm.train.sweep.show import command_line, show_ranges, show_settings

DEFINITION = "sweep.json"
START_SECONDS = 8
"""What a training process takes before its first step; for the estimate only."""
OF_THE_SWEEP = ("name", "runs_dir", "resume")
RUNS_DEPEND_ON = ("tokens", "range_test", "range_steps", "range_factor")
"""Options of the sweep without which the same words would be other runs."""


def main(argv: list[str], start: Start = start_training) -> int:
    """Run or continue the sweep. Returns the exit code."""
    if any(word in ("-h", "--help") for word in argv):
        load(SweepConfig, "sweep", argv)
    typed = [word for word in argv if "=" in word]
    lists = {key for key, value in option_defaults("sweep", typed).items() if isinstance(value, list)}
    whole = read_grid(argv, lists)
    config = load(SweepConfig, "sweep", [*whole.fixed, *(f"{key}={values[0]}" for key, values in whole.axes)])
    if not whole.axes and not config.sweep.range_test:
        raise UserError(
            "a sweep needs an option with several values, as optim.lr=0.01,0.02,0.05 (or sweep.range_test=true)"
        )
    if config.sweep.range_test and "optim.lr" in dict(whole.axes):
        raise UserError("sweep.range_test=true tries learning rates itself: give optim.lr one value, or none")
    check_files(config.data)
    own = [word for word in whole.fixed if word.partition("=")[0] in OF_THE_SWEEP or word.startswith("sweep.")]
    grid = Grid(tuple(word for word in whole.fixed if word not in own), whole.axes)
    name = (config.name or config.preset) + ("-range" if config.sweep.range_test else "")
    folder = Path(os.path.expanduser(config.runs_dir)) / "sweeps" / name
    runs, reason = plan_runs(grid, config.sweep, folder)
    if config.resume not in ("auto", "never"):
        raise UserError(f"resume={config.resume}: a sweep takes resume=auto (go on) or resume=never (start anew)")
    lock = _take_folder(folder, anew=config.resume == "never")
    try:
        return _run(config, grid, folder, runs, reason, start)
    finally:
        lock.release()


def _take_folder(folder: Path, *, anew: bool) -> RunLock:
    """Make and lock the sweep's folder. With ``anew`` an earlier sweep of that name is renamed.

    UserError where another process sweeps there, or where the folder cannot be made or written.
    """
    try:
        lock = take_lock(folder)
        if anew and (folder / DEFINITION).exists():
            print(f"the earlier sweep is kept as {back_up(folder)}")
            lock.release()
            lock = take_lock(folder)
        return lock
    except OSError as error:
        where, why = error.filename or folder, error.strerror or error
        raise UserError(
            f"the sweep's folder {folder} cannot be used ({where}: {why}): give runs_dir=DIR a folder that you may "
            "write to"
        ) from error


def _run(
    config: SweepConfig, grid: Grid, folder: Path, runs: Sequence[PlannedRun], reason: str | None, start: Start
) -> int:
    _define(folder, grid, config)
    (folder / "logs").mkdir(exist_ok=True)
    with Execution(runs, config.sweep.keep, folder / "logs", start) as execution:
        _announce(execution, folder, reason)
        try:
            execution.all_to_the_end()
            code = 0
        except Interrupted as interrupted:
            same = "the same command with resume=auto" if config.resume == "never" else "the same command"
            print(f"stopped; {same} goes on from here", flush=True)
            code = 128 + interrupted.number
    if all(outcome.status == "failed" for outcome in execution.outcomes.values()):
        worst = execution.outcomes[runs[0].point.label]
        raise UserError(f"no run of the sweep could train: {worst.reason} (see {folder / 'logs'})")
    record: dict[str, Any] = {"sweep": str(folder), "complete": code == 0}
    if config.sweep.range_test:
        record |= _finish_ranges(grid, folder, runs, execution)
    else:
        record |= _finish(grid, folder, runs, execution, config.sweep.tokens)
    atomic_write_json(folder / "results.json", record)
    final_json(record)
    return code


def _define(folder: Path, grid: Grid, config: SweepConfig) -> None:
    """Write ``sweep.json``. UserError where the folder holds a sweep with other options than these."""
    path = folder / DEFINITION
    options = to_dict(config.sweep)
    new: dict[str, Any] = {"fixed": sorted(grid.fixed), "swept": [key for key, _ in grid.axes]}
    new |= {"sweep": {key: options[key] for key in RUNS_DEPEND_ON}}
    try:
        old = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        old = None
    if old is not None:
        for key, value in new.items():
            if old.get(key) != value:
                raise UserError(
                    f"{folder} holds a sweep with other options ({_text(old.get(key))}, now {_text(value)}): give this "
                    "one another name=, or resume=never"
                )
    atomic_write_json(path, new | {"values": {key: list(values) for key, values in grid.axes}})


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"sweep.{key}={each}" for key, each in value.items())
    return " ".join(map(str, value or [])) or "none"


def _announce(execution: Execution, folder: Path, reason: str | None) -> None:
    """What is to come: runs, the rule that stops them, time."""
    runs, outcomes = execution.runs, execution.outcomes.values()
    settings = {run.point.setting for run in runs}
    seeds = f", {len(runs) // len(settings)} seeds each" if len(runs) > len(settings) else ""
    counts = f"{_count(len(runs), 'run')} of {_count(len(settings), 'setting')}{seeds}"
    print(f"{folder}: {counts}; {runs[0].tokens:,} tokens in the first run")
    if reason:
        print(f"  {reason}")
    else:
        steps = ", ".join(f"{step:,}" for step in runs[0].rung_steps)
        print(
            f"  after step {steps} of {runs[0].steps:,} the settings with the higher validation loss (bits per byte, "
            "mean of the seeds, equal tokens) stop"
        )
    trained = [(run.flops(each.step), each.seconds) for run, each in zip(runs, outcomes, strict=True) if each.seconds]
    flops, seconds = sum(each[0] for each in trained), sum(each[1] for each in trained)
    done = sum(outcome.status == "finished" for outcome in outcomes)
    if done or trained:
        print(f"  {done} of them are finished already")
    minutes = [run.minutes for run in runs if run.minutes is not None]
    if minutes:
        left = 60 * sum(minutes) - seconds
        kind = "by train.max_minutes"
    else:
        rate = flops / seconds if seconds else guess_flops_per_s()
        left = execution.flops_left() / rate
        kind = "at the speed of the runs so far" if seconds else "a guess from a matrix product, better after a run"
    starts = START_SECONDS * sum(outcome.status != "finished" for outcome in outcomes)
    print(f"  time: about {duration(max(0, left) + starts)} ({kind})", flush=True)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _finish(
    grid: Grid, folder: Path, runs: Sequence[PlannedRun], execution: Execution, tokens: float | None
) -> dict[str, Any]:
    """The table, the best settings' command, the comparison; ``tokens``: of every run, where the sweep gave it."""
    groups: dict[Values, list[PlannedRun]] = {}
    for run in runs:
        groups.setdefault(run.point.setting, []).append(run)
    settings = best_first(
        [Setting(each, [execution.outcomes[run.point.label] for run in each]) for each in groups.values()]
    )
    show_settings(f"Sweep {folder.name}: best first", grid, settings)
    record: dict[str, Any] = {"settings": [setting.record() for setting in settings], "best": None, "command": None}
    best = settings[0]
    if best.status == "finished":
        values = best.runs[0].point.setting
        steps = [] if tokens is None else [("train.max_steps", str(best.runs[0].steps))]
        record |= {"best": dict(values), "command": command_line(grid, [*values, *steps])}
        print(f"best: {describe(values)}")
    compared = [run for setting in settings for run in setting.runs if execution.outcomes[run.point.label].step]
    if compared:
        path = folder / "compare.html"
        records = [RunRecord(run.root) for run in compared[:MOST_COMPARED]]
        for each in records:
            each.update()
        write_report(path, records)
        more = f", the best {len(records)} of {len(compared)}" if len(compared) > len(records) else ""
        print(f"report: {path} (curves and options next to each other{more})")
        record["report"] = str(path)
    if record["command"]:
        print(f"next: {record['command']}")
    return record


def _finish_ranges(grid: Grid, folder: Path, runs: Sequence[PlannedRun], execution: Execution) -> dict[str, Any]:
    results = [(run, _range_of(run, execution)) for run in runs]
    show_ranges(f"Learning-rate range test {folder.name}", results)
    first = results[0][1]
    if rates := rates_to_try(first):
        lr = ",".join(f"{rate:g}" for rate in rates)
        print(f"next: {command_line(grid, [*runs[0].point.values, ('optim.lr', lr)], 'sweep')}")
    return {"range_test": [{"options": dict(run.point.values), **vars(result)} for run, result in results]}


def _range_of(run: PlannedRun, execution: Execution) -> RangeResult:
    record = RunRecord(run.root)
    record.update()
    rates, losses = record.curves["lr"], record.curves["loss"]
    diverged = execution.outcomes[run.point.label].status == "diverged"
    return read_range([float(each) for each in rates], [float(each) for each in losses], broke_off=diverged)
