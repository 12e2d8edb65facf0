"""The line that shows where a run is: one live line in a terminal, plain lines elsewhere.

Tested in tests/train/run/test_run_log.py, tests/train/run/test_progress_line.py.
"""

import math
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from slm.report import duration, plain
from slm.train.predict.forecast import Outlook

PLAIN_SECONDS = 10.0
"""Where there is no terminal, a line of progress at most this often; where a step takes longer, about this often."""
MOMENT_SECONDS = 2.0
"""Work of less than this is not shown before it is done."""


@dataclass
class Work:
    """What a run does, and how far it is."""

    what: str
    seconds: float | None = None
    """What it is expected to take, where that is known."""
    share: float = 0.0
    """The share of it that is done, 0 to 1."""
    began: float = field(default_factory=perf_counter)

    def seconds_left(self) -> float | None:
        elapsed = perf_counter() - self.began
        if self.share > 0:
            return elapsed * (1 - self.share) / self.share
        return None if self.seconds is None else self.seconds - elapsed

    def text(self) -> str:
        elapsed = duration(perf_counter() - self.began)
        return f"{self.what}: {self.share:.0%} after {elapsed}" if self.share else f"{self.what}: {elapsed} so far"


class ProgressLine:
    """Step, loss, validation loss, tokens per second, memory and the time left.

    One live line in a terminal, plain lines elsewhere.
    """

    def __init__(self, max_steps: int, start: int) -> None:
        self.console = Console()
        self.max_steps = max_steps
        self.validation: str = "-"
        self._last_plain = 0.0
        self._last_work = 0.0
        self._text = "starting"
        self.work: Work | None = None
        """What the run does while there is nothing to show of it yet."""
        self._live: Progress | None = None
        if self.console.is_terminal:
            columns = (BarColumn(bar_width=20), TextColumn("{task.description}"))
            self._live = Progress(*columns, console=self.console, transient=False)
            self._task = self._live.add_task(self._text, total=max_steps, completed=start)
            self._live.start()

    def update(self, record: dict[str, Any], seconds_left: float | None, outlook: Outlook | None = None) -> None:
        """Show a training record and the loss expected at the end; ``seconds_left`` None: not known yet."""
        eta = "-" if seconds_left is None else duration(seconds_left)
        done, steps = record["step"], f"{record['step']:,}/{self.max_steps:,}"
        share = min(1.0, record["elapsed_s"] / record.get("limit_s", math.inf))
        if share * self.max_steps > done:  # time ends the run, max_steps only bounds it
            done, steps = share * self.max_steps, f"{record['step']:,} ({share:.0%})"
        text = (
            f"step {steps}  loss {record['loss']:.3f}  val {self.validation}  "
            f"{record['tokens_per_s']:,.0f} tok/s  {record['rss_gb']:.1f} GiB  ETA {eta}"
        )
        if "reward_accuracy" in record:
            text += f"  pairs right {record['reward_accuracy']:.0%}  margin {record['reward_margin']:.3f} nats"
        if "teacher_kl" in record:
            text += f"  teacher KL {record['teacher_kl']:.3f} nats"
        if outlook:
            text += f"  at the end {outlook.text()}"
        self._text = text
        if self._live:
            self._live.update(self._task, completed=done, description=text)
        elif perf_counter() - self._last_plain >= PLAIN_SECONDS or record["step"] >= self.max_steps:
            self._last_plain = perf_counter()
            print(text, flush=True)

    def tick(self) -> None:
        """Show how far the work is that takes longer than a moment."""
        work, now = self.work, perf_counter()
        if work is None or now - work.began < MOMENT_SECONDS:
            return
        if self._live:
            self._live.update(self._task, description=f"{self._text}  ({work.text()})")
        elif now - max(self._last_plain, self._last_work) >= PLAIN_SECONDS:
            self._last_work = now
            print(work.text(), flush=True)

    def print(self, text: str) -> None:
        """Print another line above the live one. Control characters, as in a sample's text, are replaced."""
        text = plain(text)
        if self._live:
            self.console.print(text, markup=False, highlight=False)
        else:
            print(text, flush=True)

    def close(self) -> None:
        if self._live:
            self._live.stop()
            self._live = None
