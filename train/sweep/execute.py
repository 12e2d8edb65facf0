"""The runs of a sweep, one after the other, each a training process: started, followed, stopped at a rung.

Tested in tests/train/sweep/test_sweep.py.
"""

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Protocol

from slm.data.progress import Progress
from slm.report import duration
from slm.train.interrupt import handle_stop_signals, signal_name, start_apart
from slm.train.report.run_record import RunRecord
from slm.train.sweep.grid import Values, describe
from slm.train.sweep.outcome import NOT_REPEATED, Outcome, last_error, read_outcome, survivors
from slm.train.sweep.planned import PlannedRun
from slm.train.sweep.time_left import TimeLeft

POLL_S = 0.1


class Process(Protocol):
    """The parts of ``subprocess.Popen`` that are used."""

    def poll(self) -> int | None: ...
    def send_signal(self, number: int) -> None: ...


Start = Callable[[Sequence[str], Path], Process]
"""Starts ``slm train WORDS`` with its output added to a file."""


def start_training(words: Sequence[str], log: Path) -> Process:
    """A training process, which ends where this process is killed."""
    return start_apart([sys.executable, "-m", "slm", "train", *words], log)


class Interrupted(BaseException):
    """A signal asked the sweep to end; the run that was going on has saved."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Execution:
    """The work of one call. Used with ``with``: signals then end it after the running process has saved."""

    def __init__(self, runs: Sequence[PlannedRun], keep: float, logs: Path, start: Start) -> None:
        self.runs, self._keep, self._logs, self._start = runs, keep, logs, start
        self.outcomes: dict[str, Outcome] = {run.point.label: read_outcome(run) for run in runs}
        self._failures: dict[str, str] = {}
        self._signal: int | None = None
        self._stage = 0
        self._alive: list[PlannedRun] = list(runs)
        self._done_flops = 0.0
        self._progress = Progress("sweep")
        self._time = TimeLeft()

    def __enter__(self) -> "Execution":
        self._before = handle_stop_signals(self._receive)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._progress.done()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if self._signal is None:  # at once, and not by print: the signal may have come within one
            os.write(2, f"\n{signal_name(number)}: the run saves its state, then the sweep stops\n".encode())
        self._signal = number

    # The order of the runs.

    @property
    def n_stages(self) -> int:
        """Rungs and the end."""
        return len(self.runs[0].rung_steps) + 1

    def all_to_the_end(self) -> None:
        """Train every run, stage by stage; after each rung the worse settings stop. Raises ``Interrupted``."""
        for stage in range(self.n_stages):
            self._stage = stage
            last = self._stage == self.n_stages - 1
            if self.n_stages > 1:
                until = "to the end" if last else f"to step {self._end(self._alive[0]):,} of {self._alive[0].steps:,}"
                print(f"stage {self._stage + 1} of {self.n_stages}: {len(self._alive)} runs {until}", flush=True)
            for run in self._alive:
                self._run(run)
            if not last:
                self._stop_losers()
            if not self._alive:
                return  # all have failed

    def _end(self, run: PlannedRun, stage: int | None = None) -> int:
        steps = (*run.rung_steps, run.steps)
        return steps[self._stage if stage is None else stage]

    def _stop_losers(self) -> None:
        losses: dict[Values, list[float | None]] = {}
        for run in self._alive:
            outcome = self.outcomes[run.point.label]
            whole = outcome.status not in ("failed", "diverged") or outcome.step > self._end(run)
            losses.setdefault(run.point.setting, []).append(outcome.at(self._end(run)) if whole else None)
        going_on = survivors(losses, self._keep)
        for setting in losses:
            if setting not in going_on:
                print(f"  stops here: {describe(setting)}", flush=True)
        self._alive = [run for run in self._alive if run.point.setting in going_on]

    def _run(self, run: PlannedRun) -> None:
        """Train ``run`` to the end of the stage, unless it is there."""
        name, target = run.point.label, self._end(run)
        before = self.outcomes[name]
        if self._signal is not None:
            raise Interrupted(self._signal)
        if before.status in NOT_REPEATED or (target < run.steps and before.at(target) is not None):
            return
        self._follow(run, None if target == run.steps else target)
        after = self.outcomes[name]
        self._done_flops += run.flops(max(0, after.step - before.step))
        self._progress.done()
        print(f"  {name}: {self._line(run, after)}", flush=True)
        if self._signal is not None:
            raise Interrupted(self._signal)

    def _line(self, run: PlannedRun, outcome: Outcome) -> str:
        if outcome.status in ("failed", "diverged"):
            return f"{outcome.status} at step {outcome.step:,}: {outcome.reason}"
        value = "no validation yet" if outcome.bits_per_byte is None else f"{outcome.bits_per_byte:.4f} bits per byte"
        return f"{value} after {outcome.tokens:,} tokens, {duration(outcome.seconds)} of training"

    def _follow(self, run: PlannedRun, stop_at: int | None) -> None:
        """One process of ``run``, asked to save and end at the validation of step ``stop_at`` or by a signal."""
        log = self._logs / f"{run.point.label}.log"
        record, asked = RunRecord(run.root), 0
        process = self._start(run.words, log)
        before = self.outcomes[run.point.label].step
        self._time.start(time.monotonic(), run.flops(before))
        while (code := process.poll()) is None:
            time.sleep(POLL_S)
            record.update()
            reached = stop_at is not None and any(each.step >= stop_at for each in record.validations)
            if (reached or self._signal is not None) and asked < 1:
                process.send_signal(signal.SIGTERM)
                asked += 1
            self._show(run, record, before)
        self._time.end(time.monotonic())
        stopped = (0, 128 + signal.SIGTERM, *([-signal.SIGTERM] if asked else []))  # the last: while it was setting up
        failed = code not in stopped
        self._failures[run.point.label] = (last_error(log) or f"exit status {code}") if failed else ""
        self.outcomes[run.point.label] = read_outcome(run, self._failures[run.point.label])

    # Time.

    def flops_left(self, step_now: dict[str, int] | None = None) -> float:
        """Arithmetic that is left, the survivors of later rungs taken as average ones."""
        step_now = step_now or {}

        def left(run: PlannedRun, stage: int) -> float:
            outcome = self.outcomes[run.point.label]
            if outcome.status in NOT_REPEATED:
                return 0.0
            begin = 0 if stage == 0 else self._end(run, stage - 1)
            at = max(begin if stage > self._stage else 0, outcome.step, step_now.get(run.point.label, 0))
            return run.flops(max(0, self._end(run, stage) - at))

        total, share, count = 0.0, 1.0, len({run.point.setting for run in self._alive})
        for stage in range(self._stage, self.n_stages):
            total += share * sum(left(run, stage) for run in self._alive)
            share = math.ceil(round(share * count * self._keep, 9)) / count
        return total

    def starts_left(self, current: PlannedRun) -> float:
        """Processes that are still to be started, the survivors of later rungs taken as average ones."""
        behind = self._alive[self._alive.index(current) + 1 :] if current in self._alive else []
        total = float(sum(self.outcomes[run.point.label].status not in NOT_REPEATED for run in behind))
        count = len({run.point.setting for run in self._alive})
        share = math.ceil(round(count * self._keep, 9)) / count
        for _ in range(self._stage + 1, self.n_stages):
            total += share * len(self._alive)
            share = math.ceil(round(share * count * self._keep, 9)) / count
        return total

    def _show(self, run: PlannedRun, record: RunRecord, before: int) -> None:
        step = record.step()
        done = self._done_flops + run.flops(max(0, step - before))
        now = time.monotonic()
        self._time.step(now, run.flops(step))
        note = f"{run.point.label} at step {step:,} of {run.steps:,}"
        if (loss := record.recent("loss")) is not None:
            note += f", loss {loss:.3f}"
        if record.validations and (bits := record.validations[-1].bits_per_byte) is not None:
            note += f", {bits:.3f} bits per byte"
        left = self.flops_left({run.point.label: step})
        seconds = self._time.left(now, left, self.starts_left(run))
        if seconds is None:  # before the second step of the first run
            self._progress.update(0, None, note)
        else:
            self._progress.update(done, done + left, note, seconds)


def guess_flops_per_s() -> float:
    """A guess at what this machine does in training, before the first run: 0.4 of the rate of an f32 matrix product."""
    import numpy as np

    generator = np.random.default_rng(0)
    a, b = (generator.standard_normal((1024, 1024), dtype=np.float32) for _ in range(2))
    best = math.inf
    for _ in range(5):
        start = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - start)
    return 0.4 * 2 * 1024**3 / best


def summary(outcomes: dict[str, Outcome]) -> dict[str, Any]:
    """How many runs are in which state."""
    counts: dict[str, int] = {}
    for outcome in outcomes.values():
        counts[outcome.status] = counts.get(outcome.status, 0) + 1
    return counts
