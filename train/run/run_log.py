"""What a run prints and writes while it trains: metrics, progress line, Weights & Biases, event log.

Tested in tests/train/test_main.py, tests/train/test_reliability.py.
"""

import time
from pathlib import Path
from typing import Any

from train.config import RunConfig
from train.run.event_log import EventLog
from train.run.metrics_file import MetricsFile
from train.run.progress import ProgressLine
from train.run.wandb_logger import WandbLogger

GUARD_EVENTS = {
    "skipped": "{error}: the update is skipped with its data ({skipped} so far)",
    "spike": "the loss is {loss:.4f}, {times:.1f} times the median; there is no checkpoint yet to go back to",
    "rolled_back": (
        "the loss of step {from:,} was {loss:.4f}, {times:.1f} times the median: back to this checkpoint, "
        "on with the data after it ({tokens:,} tokens passed over)"
    ),
    "slept": "the machine slept for {seconds:,} s; tokens/s, the time left and max_minutes do not count them",
}
"""The line for each kind of event that a guard records among the metrics."""


class RunLog:
    """Writes records to ``metrics.jsonl`` (and to wandb where it is configured) and lines to the terminal.

    ``main``: whether this process writes the run's directory. ``step``: where the run begins; later metrics are
    dropped, since they are about to be computed again.
    """

    def __init__(self, config: RunConfig, root: Path, step: int, *, main: bool) -> None:
        self.events = EventLog(root, active=main)  # first: it counts the records that the metrics file drops
        self._metrics = MetricsFile(root / "metrics.jsonl", step)
        self._wandb = WandbLogger(config, root) if main and config.logger.name == "wandb" else None
        self._progress = ProgressLine(config.train.max_steps, step)

    def print(self, text: str) -> None:
        """A line of its own in the terminal."""
        self._progress.print(text)

    def training(self, record: dict[str, Any], seconds_left: float | None) -> None:
        """A training record; ``seconds_left`` None: not known yet."""
        self._record(record)
        self._progress.update(record, seconds_left)

    def validation(self, record: dict[str, Any]) -> None:
        """A validation record."""
        self._record(record)
        self._progress.validation = f"{record['val_loss']:.3f}"
        self.print(
            f"step {record['step']:,}: validation {record['val_loss']:.4f} nats per token, "
            f"{record['val_bits_per_byte']:.4f} bits per byte"
        )

    def guard_event(self, event: str, step: int, **facts: Any) -> None:
        """Something outside a step's ordinary course: a line, and a record among the metrics."""
        self._metrics.write({"event": event, "step": step, "time": time.time(), **facts})
        self.print(f"step {step:,}: {GUARD_EVENTS[event].format(**facts)}")

    def rewind(self, step: int) -> None:
        """Drop the metrics after ``step``."""
        self._metrics.close()
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
