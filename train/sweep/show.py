"""The tables of a sweep, and the command line of what was best.

Tested in tests/train/sweep/test_sweep.py.
"""

import math
from collections.abc import Sequence

from slm import cli
from slm.report import table
from slm.train.sweep.grid import Grid, short_names
from slm.train.sweep.outcome import Setting
from slm.train.sweep.planned import PlannedRun
from slm.train.sweep.range_test import RangeResult

CAPTION = (
    "bits per byte: of held-out text, bits of its tokens over the UTF-8 bytes they stand for; nats: mean cross-entropy "
    "per token\n± : sample standard deviation over seeds; tokens/s: median; minutes: of training with validations and "
    "saves, of one run"
)


def show_settings(title: str, grid: Grid, settings: Sequence[Setting]) -> None:
    """The table of settings, best first."""
    keys = [key for key, _ in grid.axes if key != "train.seed"]
    seeds = max(len(setting.runs) for setting in settings)
    names = short_names(keys)
    columns = [*(names[key] for key in keys), "bits per byte", *(["±"] if seeds > 1 else []), "nats per token"]
    columns += [*(["seeds"] if seeds > 1 else []), "tokens", "tokens/s", "minutes", "state"]
    rows = []
    for setting in settings:
        values = dict(setting.runs[0].point.setting)
        speeds = [each.tokens_per_s for each in setting.outcomes if each.tokens_per_s is not None]
        rows.append(
            [
                *(values[key] for key in keys),
                _number(setting.bits_per_byte),
                *([_number(setting.spread)] if seeds > 1 else []),
                _number(setting.loss),
                *([str(len(setting.runs))] if seeds > 1 else []),
                f"{max(each.tokens for each in setting.outcomes):,}",
                f"{sum(speeds) / len(speeds):,.0f}" if speeds else "",
                f"{sum(each.seconds for each in setting.outcomes) / len(setting.outcomes) / 60:.1f}",
                _state(setting),
            ]
        )
    best = [0] if settings and settings[0].status == "finished" else []
    table(title, columns, rows, caption=CAPTION, key=max(1, len(keys)), chosen=best)


def _state(setting: Setting) -> str:
    reason = next((each.reason for each in setting.outcomes if each.reason), "")
    if setting.status == "stopped":
        return f"stopped at {setting.share:.0%}"
    return f"{setting.status}: {reason[:60]}" if setting.status == "failed" else setting.status


def _number(value: float | None) -> str:
    return "" if value is None or not math.isfinite(value) else f"{value:.4f}"


def command_line(grid: Grid, values: Sequence[tuple[str, str]], command: str = "train") -> str:
    """``slm train`` (or ``make train``) with these values and what all runs share."""
    words = [word.partition("=") for word in grid.fixed]
    options = {key: value for key, _, value in words} | dict(values)
    return cli.spelled(command, **{key.replace(".", "__"): value for key, value in options.items()})


def show_ranges(title: str, results: Sequence[tuple[PlannedRun, RangeResult]]) -> None:
    """The table of range tests, one row per run."""

    def rate(value: float | None) -> str:
        return "not reached" if value is None else f"{value:.3g}"

    keys = [key for key, _ in results[0][0].point.values]
    names = short_names(keys)
    table(
        title,
        [*(names[key] for key in keys), "steepest", "lowest loss", "diverging", "lowest loss, nats per token"],
        [
            [
                *(value for _, value in run.point.values),
                rate(result.steepest),
                rate(result.lowest),
                rate(result.diverging),
                _number(result.loss),
            ]
            for run, result in results
        ],
        caption="optim.lr where the smoothed training loss fell fastest per factor of the rate, where it was lowest, "
        "and from where\non it was above that by a tenth of its fall; other learning rates grow in the same proportion",
    )
