"""A run's progress: one live line in a terminal, plain lines elsewhere."""

from time import perf_counter
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from slm.report import duration, plain

PLAIN_SECONDS = 10.0
"""Where there is no terminal, a line at most this often."""


class ProgressLine:
    """Step, loss, validation loss, tokens per second, memory and the time left."""

    def __init__(self, max_steps: int, start: int) -> None:
        self.console = Console()
        self.max_steps = max_steps
        self.validation: str = "-"
        self._last_plain = 0.0
        self._live: Progress | None = None
        if self.console.is_terminal:
            columns = (BarColumn(bar_width=20), TextColumn("{task.description}"))
            self._live = Progress(*columns, console=self.console, transient=False)
            self._task = self._live.add_task("starting", total=max_steps, completed=start)
            self._live.start()

    def update(self, record: dict[str, Any], seconds_left: float | None) -> None:
        """Show a training record; ``seconds_left`` None: not known yet."""
        eta = "-" if seconds_left is None else duration(seconds_left)
        text = (
            f"step {record['step']:,}/{self.max_steps:,}  loss {record['loss']:.3f}  val {self.validation}  "
            f"{record['tokens_per_s']:,.0f} tok/s  {record['rss_gb']:.1f} GiB  ETA {eta}"
        )
        if self._live:
            self._live.update(self._task, completed=record["step"], description=text)
        elif perf_counter() - self._last_plain >= PLAIN_SECONDS or record["step"] >= self.max_steps:
            self._last_plain = perf_counter()
            print(text, flush=True)

    def print(self, text: str) -> None:
        """Print a line of its own above the live one. Control characters, as in a sample's text, are replaced."""
        text = plain(text)
        if self._live:
            self.console.print(text, markup=False, highlight=False)
        else:
            print(text, flush=True)

    def close(self) -> None:
        if self._live:
            self._live.stop()
            self._live = None
