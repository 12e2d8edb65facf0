"""What each run of a sweep will do: its command, its steps, its rungs and its arithmetic.

Tested in tests/train/sweep/test_sweep.py.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slm.configuration import assigned
from slm.data.errors import UserError
from slm.train.config import RunConfig
from slm.train.resolve import model_shape, resolve
from slm.train.sweep.config import SweepOptions
from slm.train.sweep.grid import Grid, Point

VALIDATIONS = 8
"""Validations of a run without a given ``train.eval_every``."""
SAME_TOKENS = 0.03
"""Runs are not compared before their ends if their tokens differ by a larger share."""
OWN_WORDS = ("train.keep_last=1", "train.sample_prompts=[]")
"""Options of every run of a sweep unless others are given: few files on the disk, and no time for samples."""


@dataclass(frozen=True)
class PlannedRun:
    """A run of the sweep before it starts."""

    point: Point
    root: Path
    words: tuple[str, ...]
    """The words of its ``slm train`` command."""
    steps: int
    rung_steps: tuple[int, ...]
    """The validation steps at which it is compared, the end left out."""
    tokens_per_step: int
    flops_per_token: int
    minutes: float | None
    """Its time, where ``train.max_minutes`` bounds it."""

    def flops(self, steps: int) -> float:
        return float(steps) * self.tokens_per_step * self.flops_per_token

    @property
    def tokens(self) -> int:
        return self.steps * self.tokens_per_step


def plan_runs(grid: Grid, options: SweepOptions, folder: Path) -> tuple[list[PlannedRun], str | None]:
    """Every run, checked as ``slm train`` would check it; and why no run is stopped early, where that is so.

    UserError, with the point's values, for one that could not train.
    """
    given = {word.partition("=")[0] for word in grid.fixed}
    common = [*(word for word in OWN_WORDS if word.partition("=")[0] not in given), *grid.fixed]
    runs = [_plan(point, common, given, options, folder) for point in grid.points()]
    reason = None if options.range_test else _why_to_the_end(runs, options)
    if reason:
        runs = [PlannedRun(**{**vars(run), "rung_steps": ()}) for run in runs]
    return runs, reason


def _plan(point: Point, common: Sequence[str], given: set[str], options: SweepOptions, folder: Path) -> PlannedRun:
    words = [*common, *point.words, f"name='{point.label}'", assigned("runs_dir", folder)]
    swept = {key for key, _ in point.values}
    config = _resolved(point, words)
    train = config.train
    steps = train.max_steps
    if options.range_test:
        steps, ratio = options.range_steps, 1 / options.range_factor
        words += [f"train.max_steps={steps}", "optim.schedule=range_test", f"optim.min_lr_ratio={ratio!r}"]
        words += ["optim.warmup_steps=0", f"train.eval_every={steps}", "train.spike_factor=null"]
    elif options.tokens is not None:
        steps = max(1, round(options.tokens / train.tokens_per_step))
        words.append(f"train.max_steps={steps}")
    every = train.eval_every
    if not options.range_test and "train.eval_every" not in given | swept:
        every = max(1, steps // VALIDATIONS)
        words.append(f"train.eval_every={every}")
    if "train.checkpoint_every" not in given | swept:
        words.append(f"train.checkpoint_every={max(steps, 1)}")  # and every 15 minutes, and when it is stopped
    rungs = [math.ceil(round(share * steps / every, 6)) * every for share in options.rungs]
    return PlannedRun(
        point=point,
        root=folder / point.label,
        words=tuple(words),
        steps=steps,
        rung_steps=tuple(dict.fromkeys(rung for rung in rungs if 0 < rung < steps)),
        tokens_per_step=config.train.tokens_per_step,
        flops_per_token=config.train.flops_per_token(model_shape(config)),
        minutes=config.train.max_minutes,
    )


def _resolved(point: Point, words: Sequence[str]) -> RunConfig:
    try:
        return resolve(list(words), lambda config: config)
    except UserError as error:
        raise UserError(f"{error} (in {' '.join(point.words)})" if point.values else str(error)) from error


def _why_to_the_end(runs: Sequence[PlannedRun], options: SweepOptions) -> str | None:
    if not options.rungs or options.keep == 1 or len({run.point.setting for run in runs}) < 2:
        return "every run goes to its end"
    if any(run.minutes is not None for run in runs):
        return "every run goes to its end: where time ends runs, they cannot be compared at equal tokens before"
    counts = [run.tokens for run in runs]
    if max(counts) > (1 + SAME_TOKENS) * min(counts):
        return "every run goes to its end: the runs have different numbers of tokens (sweep.tokens gives all the same)"
    if not all(len(run.rung_steps) == len(runs[0].rung_steps) for run in runs):
        return "every run goes to its end: the runs validate at different shares of their tokens"
    return None if runs[0].rung_steps else "every run goes to its end: no validation comes before it"
