"""What a run prints and writes while it trains: metrics, progress line, Weights & Biases, event log."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slm.data.storage import atomic_write_text
from slm.evaluate.exam.own import Outcome
from slm.train.config import RunConfig
from slm.train.predict.forecast import make_forecast
from slm.train.report.samples import SAMPLES, before
from slm.train.run.event_log import EventLog
from slm.train.run.metrics_file import MetricsFile, read
from slm.train.run.progress_line import ProgressLine, Work
from slm.train.run.wandb_logger import WANDB_ID, WandbLogger

GUARD_EVENTS = {
    "skipped": "{error}: the update is skipped with its data ({skipped} so far)",
    "spike": "the loss is {loss:.4f}, {times:.1f} times the median; there is no checkpoint yet to go back to",
    "rolled_back": (
        "the loss of step {from:,} was {loss:.4f}, {times:.1f} times the median: back to this checkpoint, "
        "on with the data after it ({tokens:,} tokens passed over)"
    ),
    "asked": "{line}",
    "slept": "the machine slept for {seconds:,} s; tokens/s, the time left and max_minutes do not count them",
}
"""The line for each kind of event that a guard records among the metrics."""
LOGS = ("metrics.jsonl", "journal.jsonl", SAMPLES, WANDB_ID)
"""What a run appends to, and the name of its curves at Weights & Biases."""


def cut_samples(path: Path, metrics: Path, step: int) -> None:
    """Drop the samples of validations after ``step`` from ``samples.md``: they are about to be written again.

    A model may write a line that looks like a heading, so the validations are those that the ``metrics`` know.
    """
    if not path.exists() or not metrics.exists():
        return
    later = {record["step"] for record in read(metrics) if "val_loss" in record and record["step"] > step}
    text = path.read_text(encoding="utf-8", errors="replace")
    if (kept := before(text, later)) != text:
        atomic_write_text(path, kept)


class RunLog:
    """Writes records to ``metrics.jsonl`` (and to wandb where it is configured) and lines to the terminal.

    ``main``: whether this process writes the run's directory. ``step``: where the run begins; later metrics are
    dropped, since they are about to be computed again. A ``new`` run, without a checkpoint, begins its logs: what lies
    there was left by a start that ended before its first checkpoint, perhaps with other settings.
    """

    def __init__(self, config: RunConfig, root: Path, step: int, *, main: bool, new: bool) -> None:
        if new:
            for name in LOGS:
                (root / name).unlink(missing_ok=True)
        self.events = EventLog(root, active=main)  # first: it counts the records that the metrics file drops
        self._samples = root / SAMPLES
        cut_samples(self._samples, root / "metrics.jsonl", step)
        self._metrics = MetricsFile(root / "metrics.jsonl", step)
        self._wandb = WandbLogger(config, root) if main and config.logger == "wandb" else None
        self._progress = ProgressLine(config.train.max_steps, step)
        self._forecast = make_forecast(config) if main else None
        self._peak = config.optim.lr
        if self._forecast:
            for record in read(self._metrics.path):
                self._note(record)

    def print(self, text: str) -> None:
        """Print a line in the terminal."""
        self._progress.print(text)

    @contextmanager
    def doing(self, what: str, seconds: float | None = None) -> Iterator[None]:
        """Within it the progress line moves although there is nothing to record: ``what`` the run does, such as
        "validation", and how long it is expected to take, where that is known."""
        before, self._progress.work = self._progress.work, Work(what, seconds)
        try:
            yield
        finally:
            self._progress.work = before

    def done(self, share: float) -> None:
        """How much of what the run does is done, 0 to 1."""
        if self._progress.work:
            self._progress.work.share = share

    def tick(self) -> None:
        """Let the progress line move. Called every second, by another thread."""
        self._progress.tick()

    def stopping(self, reason: str) -> None:
        """Acknowledge that the run was asked to end. Called by another thread while the run computes."""
        work = self._progress.work
        text = f"{reason}: stopping after {work.what}" if work else f"{reason}: stopping"
        if work and (left := work.seconds_left()) is not None:
            text += f" (about {max(1.0, left):,.0f} s)"
        self.print(f"{text}, then saving; Ctrl-C once more ends the run without saving")

    def training(self, record: dict[str, Any], seconds_left: float | None) -> None:
        """A training record, which gets the forecast of the end; ``seconds_left`` None: not known yet."""
        self._note(record)
        outlook = None
        if self._forecast and seconds_left is not None:
            outlook = self._forecast.at_end(record["tokens"] + seconds_left * record["tokens_per_s"])
        self._record(record | (outlook.record() if outlook else {}))
        self._progress.update(record, seconds_left, outlook)

    def _note(self, record: dict[str, Any]) -> None:
        """Show the forecast a training or validation record."""
        if self._forecast is None:
            return
        if "val_loss" in record:
            self._forecast.validation(record["tokens"], record["val_loss"], record["val_bits_per_byte"])
        elif "lr" in record and "bag" not in record:
            self._forecast.training(record["tokens"], record["lr"] / self._peak, record["loss"] or math.nan)

    def validation(self, record: dict[str, Any], risen_from: float | None = None) -> None:
        """A validation record. ``risen_from``: the run's lowest loss, where this one lies clearly above it."""
        self._note(record)
        self._record(record)
        self._progress.validation = f"{record['val_loss']:.3f}"
        bits = f"{record['val_bits_per_byte']:.4f} bits per byte"
        if "val_reward_accuracy" in record:
            text = (
                f"{record['val_loss']:.4f} per pair, {record['val_reward_accuracy']:.1%} of pairs right, margin "
                f"{record['val_reward_margin']:.3f} nats; the chosen answers have {bits}"
            )
        else:
            text = f"{record['val_loss']:.4f} nats per token, {bits}"
            if risen_from is not None:
                text += f", risen from {risen_from:.4f}"
        self.print(f"step {record['step']:,}: validation {text}")

    def guard_event(self, event: str, step: int, **facts: Any) -> None:
        """One of ``GUARD_EVENTS``: its line, and a record among the metrics."""
        self.event(event, step, GUARD_EVENTS[event].format(**facts), **facts)

    def event(self, event: str, step: int, text: str, /, **facts: Any) -> None:
        """Something outside a step's ordinary course: a line, and a record among the metrics."""
        self._metrics.write({"event": event, "step": step, "time": time.time(), **facts})
        self.print(f"step {step:,}: {text}")

    def asked(self, step: int, out: Outcome, line: str) -> None:
        """The score of a run's questions: a line, and a record among the metrics."""
        nats = out.nats()
        facts = {"questions": len(out.asked), "judged": out.judged, "right": out.right, "text": out.text()}
        facts |= {"nats_per_token": nats[0] if nats else None, "seconds": round(out.seconds, 2), "line": line}
        self.guard_event("asked", step, **facts)

    def asked_first(self) -> dict[str, Any] | None:
        """The record of the score before the first step; None where there is none."""
        found = (each for each in read(self._metrics.path) if each.get("event") == "asked" and each["step"] == 0)
        return next(found, None)

    def rewind(self, step: int) -> None:
        """Drop the metrics and samples after ``step``."""
        self._metrics.close()
        cut_samples(self._samples, self._metrics.path, step)
        self._metrics = MetricsFile(self._metrics.path, step)

    def close(self) -> None:
        """End the progress line, then close the files."""
        self._progress.close()
        self._metrics.close()
        if self._wandb:
            self._wandb.close()

    def _record(self, record: dict[str, Any]) -> None:
        self._metrics.write(record)
        if self._wandb:
            self._wandb.log(record)
