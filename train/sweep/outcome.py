"""What a run of a sweep has come to, read from its directory, and which settings go on after a rung.

The rule is successive halving (Jamieson and Talwalkar 2016) by validation loss.

Tested in tests/train/sweep/test_outcome.py, tests/train/sweep/test_halving.py.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from slm.train.report.run_record import RunRecord
from slm.train.sweep.planned import PlannedRun

Key = TypeVar("Key")


def survivors(losses: Mapping[Key, Sequence[float | None]], keep: float) -> list[Key]:
    """The settings that go on, in their order: the share ``keep`` of them, rounded up, with the lowest mean losses.

    ``losses``: of each setting, one per seed, at equal tokens; None for a run that failed. A setting with a failed run
    does not go on, and neither counts the share for more than there are.
    """
    means = {key: mean(values) for key, values in losses.items()}
    whole = [key for key, value in means.items() if value < math.inf]
    best = sorted(whole, key=means.__getitem__)[: math.ceil(round(len(losses) * keep, 9))]
    return [key for key in losses if key in best]


def mean(values: Sequence[float | None]) -> float:
    """The mean; infinity where a value is missing or there is none."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known and len(known) == len(values) else math.inf


def deviation(values: Sequence[float]) -> float | None:
    """The sample standard deviation; None for fewer than two values."""
    if len(values) < 2:
        return None
    middle = sum(values) / len(values)
    return math.sqrt(sum((value - middle) ** 2 for value in values) / (len(values) - 1))


Status = Literal["finished", "stopped", "diverged", "failed", "waiting"]
NOT_REPEATED = ("finished", "diverged")
"""A run of these is done: what it came to would come again."""


@dataclass(frozen=True)
class Outcome:
    """A run's figures so far."""

    status: Status
    """``stopped``: it saved and can go on; ``waiting``: it has not begun; ``diverged``: its loss was not finite."""
    step: int
    tokens: int
    bits_per_byte: float | None
    """The last validation's bits per byte; None before the first one."""
    loss: float | None
    """Nats per token, of the last validation."""
    seconds: float
    """Seconds of training, validations and saves included."""
    tokens_per_s: float | None
    reason: str
    """Why it failed; empty where it did not."""
    by_step: dict[int, float | None]
    """Bits per byte of every validation."""

    def at(self, step: int) -> float | None:
        """Bits per byte of the validation at ``step``; None where there is none."""
        return self.by_step.get(step)


def read_outcome(run: PlannedRun, failure: str = "") -> Outcome:
    """The state of the run's directory. ``failure``: why its last process ended, where that left no record."""
    record = RunRecord(run.root)
    record.update()
    last = record.validations[-1] if record.validations else None
    status, reason = _status(record, failure)
    return Outcome(
        status=status,
        step=record.step(),
        tokens=record.tokens(),
        bits_per_byte=last.bits_per_byte if last else None,
        loss=last.loss if last else None,
        seconds=record.elapsed(),
        tokens_per_s=record.speed(),
        reason=reason,
        by_step={each.step: each.bits_per_byte for each in record.validations},
    )


def _status(record: RunRecord, failure: str) -> tuple[Status, str]:
    end = record.event_log[-1] if record.event_log else None
    if failure and (end is None or end.kind != "end" or end.facts.get("status") != "failed"):
        return "failed", failure
    if end is None:
        return "waiting", ""
    facts = end.facts if end.kind == "end" else {}
    if facts.get("status") == "finished" and record.validations:
        return "finished", ""
    if facts.get("status") == "failed":
        diverged = facts.get("error") == "NonFiniteError"
        return ("diverged" if diverged else "failed"), str(facts.get("reason", ""))
    return "stopped", ""


@dataclass(frozen=True)
class Setting:
    """The runs that differ in their seed only."""

    runs: Sequence[PlannedRun]
    outcomes: Sequence[Outcome]

    @property
    def status(self) -> Status:
        """The status of the run that is least well off."""
        order: tuple[Status, ...] = ("failed", "diverged", "waiting", "stopped", "finished")
        return min((outcome.status for outcome in self.outcomes), key=order.index)

    @property
    def share(self) -> float:
        """The share of its steps that every run has done."""
        return min(outcome.step / run.steps for run, outcome in zip(self.runs, self.outcomes, strict=True))

    @property
    def bits_per_byte(self) -> float:
        """Mean over the seeds; infinity where a run has none."""
        return mean([outcome.bits_per_byte for outcome in self.outcomes])

    @property
    def spread(self) -> float | None:
        """Sample standard deviation over the seeds, bits per byte."""
        return deviation([outcome.bits_per_byte for outcome in self.outcomes if outcome.bits_per_byte is not None])

    @property
    def loss(self) -> float:
        return mean([outcome.loss for outcome in self.outcomes])

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "options": dict(self.runs[0].point.setting),
            "status": self.status,
            "bits_per_byte": self.bits_per_byte,
            "bits_per_byte_spread": self.spread,
            "val_loss": self.loss,
            "runs": [
                {
                    "run": str(run.root),
                    "options": dict(run.point.values),
                    "status": outcome.status,
                    "step": outcome.step,
                    "steps": run.steps,
                    "tokens": outcome.tokens,
                    "bits_per_byte": outcome.bits_per_byte,
                    "val_loss": outcome.loss,
                    "tokens_per_s": outcome.tokens_per_s,
                    "seconds": outcome.seconds,
                    **({"reason": outcome.reason} if outcome.reason else {}),
                }
                for run, outcome in zip(self.runs, self.outcomes, strict=True)
            ],
        }


def best_first(settings: Sequence[Setting]) -> list[Setting]:
    """Finished ones by bits per byte, then those that were stopped, the longest first, then those that failed.

    Time or patience may end runs at any step: what they came to decides.
    """
    ranks = {"finished": 0, "stopped": 1, "waiting": 2, "diverged": 3, "failed": 4}

    def place(each: Setting) -> tuple[int, float, float]:
        return ranks[each.status], 0.0 if each.status == "finished" else -each.share, each.bits_per_byte

    return sorted(settings, key=place)


def last_error(log: Path) -> str:
    """The last line that a process wrote about its end."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    said = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return said[-1] if said else next((line for line in reversed(lines) if line.strip()), "")
