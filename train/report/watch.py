"""``python -m train.report.watch``: a run as it goes on, seen from another terminal.

It only reads the run's files: it can be started and left at any time, as often as one likes.
"""

import contextlib
import math
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from data.errors import UserError
from slm import cli
from slm.configuration import build, load_config
from slm.report import duration, plain
from train.report.run_record import RunStory, find_run
from train.report.sections import STATUS, count_text, number_text, told
from train.run_lock import LOCK, is_locked

BARS = "▁▂▃▄▅▆▇█"
LEAVE = (b"q", b"Q", b"\x03", b"\x04")
"""q, and Ctrl-C and Ctrl-D where the terminal hands them over as keys."""


@dataclass(kw_only=True)
class WatchOptions:
    """How to look."""

    once: bool = False
    every_s: float = 1.0
    patience_s: float = 30.0

    def __post_init__(self) -> None:
        if not 0.05 <= self.every_s <= 3600:
            raise UserError(f"watch.every_s must be from 0.05 to 3600 seconds, not {self.every_s}")
        if not 0 <= self.patience_s <= 86400:
            raise UserError(f"watch.patience_s must be from 0 to 86400 seconds, not {self.patience_s}")


@dataclass(kw_only=True)
class WatchConfig:
    """What to look at."""

    run: str = "runs/latest"
    watch: WatchOptions = field(default_factory=WatchOptions)


class Watched:
    """A run's story and what it is right now. Another run put in its place is followed from there on."""

    def __init__(self, root: Path, patience_s: float) -> None:
        self.root, self._patience = root, patience_s
        self.story, self.status = RunStory(root), ""
        self._identity: tuple[int, int] | None = None
        self._gone_since: float | None = None

    def look(self) -> None:
        """Read what is new."""
        identity = self._inode()
        if identity != self._identity:
            # Set aside and started anew under the same name, or away for a moment between the two.
            if self._identity is not None and identity is not None:
                self.story = RunStory(self.root)
            self._identity = identity or self._identity
        held = is_locked(self.root / LOCK)
        self.story.update()
        self.status = self.story.status(held)

    def over(self) -> bool:
        """Whether there is nothing more to wait for."""
        if self.status == "running":
            self._gone_since = None
            return False
        if self.status != "gone" and self._inode() is not None:
            return True
        # Killed, perhaps to be started again by whatever looks after it.
        self._gone_since = self._gone_since or time.monotonic()
        return time.monotonic() - self._gone_since >= self._patience

    def _inode(self) -> tuple[int, int] | None:
        try:
            status = self.root.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino


def main(argv: list[str]) -> int:
    """Show the run until it ends or the person leaves. Returns the exit code."""
    config = build(WatchConfig, load_config("watch", argv))
    watched = Watched(find_run(config.run), config.watch.patience_s)
    watched.look()
    console = Console()
    if config.watch.once or watched.status != "running":
        console.print(view(watched, console), end="")
    elif console.is_terminal:
        _live(watched, console, config.watch.every_s)
    else:
        _plain(watched, config.watch.every_s)
    return 0


def _live(watched: Watched, console: Console, every_s: float) -> None:
    """Draw again and again in the same place."""
    with keys() as pressed, Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            live.update(view(watched, console, live=True), refresh=True)
            if pressed(every_s):
                break
            watched.look()
            if watched.over():
                break
        live.update(view(watched, console), refresh=True)


def _plain(watched: Watched, every_s: float) -> None:
    """A line for every validation, for a pipe or a file."""
    story = watched.story
    print(headline(watched), flush=True)
    told_steps = 0.0
    while True:
        if watched.story is not story:
            story, told_steps = watched.story, 0.0
            print(headline(watched), flush=True)
        for one in story.validations:
            if one["step"] > told_steps:
                print(_validation_line(one), flush=True)
        told_steps = max((one["step"] for one in story.validations), default=0.0)
        if watched.over():
            break
        time.sleep(every_s)
        watched.look()
    print(headline(watched), flush=True)


def _validation_line(one: dict[str, Any]) -> str:
    loss, bits = number_text(one.get("val_loss")), number_text(one.get("val_bits_per_byte"))
    return (
        f"step {int(one['step']):,}  {count_text(one.get('tokens'))} tokens  {duration(one.get('elapsed_s') or 0)}  "
        f"validation {loss} nats per token, {bits} bits per byte"
    )


def headline(watched: Watched) -> str:
    """The run in one line."""
    story = watched.story
    total = story.setting("train.max_steps")
    text = f"{plain(story.name)}: {STATUS.get(watched.status, watched.status)}, step {story.step():,}"
    text += f"/{total:,}" if isinstance(total, int) else ""
    loss, speed, left = story.recent("loss"), story.recent("tokens_per_s"), story.seconds_left()
    text += "" if loss is None else f"  loss {loss:.3f}"
    text += "" if speed is None else f"  {speed:,.0f} tok/s"
    return text + (f"  ETA {duration(left)}" if watched.status == "running" and left is not None else "")


# The view.


def view(watched: Watched, console: Console, live: bool = False) -> RenderableType:
    """Everything at a glance, for the width and height of ``console``."""
    story, running = watched.story, watched.status == "running"
    total, minutes = story.setting("train.max_steps"), story.setting("train.max_minutes")
    status = (STATUS.get(watched.status, watched.status), _colour(watched))
    title = Text.assemble((plain(story.name), "bold"), "  ", status)
    steps = f"step {story.step():,}" + (f"/{total:,}" if isinstance(total, int) else "")
    left = story.seconds_left()
    limit = f" of at most {duration(60 * minutes)}" if minutes else ""
    time_line = f"{steps}  {100 * story.progress():.1f} %  {duration(story.elapsed())}{limit} of training"
    if running:
        time_line += f"  ETA {'-' if left is None else duration(left)}"
    bar = Table.grid()
    bar.add_row(ProgressBar(total=1.0, completed=story.progress(), width=min(console.width, 78)))
    parts: list[RenderableType] = [title, bar, Text(time_line, no_wrap=True, overflow="ellipsis"), Text()]
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="ellipsis", no_wrap=True)
    for label, text in _figures(story, console.width):
        grid.add_row(label, text)
    parts.append(grid)
    if live and running and (quiet := _silence(story)):
        parts.append(Text(quiet, style="yellow"))
    text = _last_sample(story)
    if text is not None:
        room = max(3, console.height - 9 - grid.row_count) if console.is_terminal else 12
        parts += [Text(), Text(f"sample of step {story.samples[-1].step:,}", style="dim"), clipped(text, console, room)]
    if live:
        parts.append(Text("q or Ctrl-C leaves; the run goes on", style="dim"))
    return Group(*parts)


def _figures(story: RunStory, width: int) -> Iterator[tuple[str, Text]]:
    loss, recent = story.recent("loss"), story.recent("tokens_per_s")
    yield "loss", Text(f"{number_text(loss)} nats per token, mean of the last 20 records")
    if story.validations:
        last, best = story.validations[-1], story.best()
        loss_text, bits_text = number_text(last.get("val_loss")), number_text(last.get("val_bits_per_byte"))
        text = f"{loss_text} nats per token, {bits_text} bits per byte"
        yield "validation", Text(f"{text} at step {int(last['step']):,}")
        line = sparkline([one.get("val_bits_per_byte") for one in story.validations], min(40, max(8, width - 50)))
        ends = f"{number_text(story.validations[0].get('val_bits_per_byte'), 3)} {line} "
        ends += number_text(last.get("val_bits_per_byte"), 3)
        best_text = f"  best at step {int(best['step']):,}" if best else ""
        yield "bits per byte", Text(ends + best_text)
    else:
        yield "validation", Text(f"none yet; one every {story.setting('train.eval_every', '?')} steps")
    flops = story.model_facts().get("flops_per_token")
    arithmetic = f", {recent * flops / 1e9:,.0f} GFLOP/s" if recent and flops else ""
    wait = story.recent("data_wait")
    waiting = "" if wait is None else f", {100 * wait:.1f} % waiting for data"
    yield "speed", Text(("–" if recent is None else f"{recent:,.0f} tokens/s") + arithmetic + waiting)
    memory = story.recent("rss_gb")
    yield "memory", Text("–" if memory is None else f"{memory:.2f} GiB resident")
    rate, norm = story.recent("lr"), story.recent("grad_norm")
    if rate is not None and norm is not None:
        yield "optimizer", Text(f"learning rate {rate:.2e}, gradient norm {norm:.3g}")
    happened = [(event, text) for event, text in told(story) if event.kind != "end" and event.step > 0]
    if happened:
        event, text = happened[-1]
        yield "last event", Text(f"step {event.step:,}: {plain(text)}")


def _colour(watched: Watched) -> str:
    return {"running": "blue", "finished": "green", "stopped": "yellow"}.get(watched.status, "red")


def _silence(story: RunStory) -> str:
    """A line where nothing was written for much longer than records usually take."""
    seconds, steps = story.curves["elapsed_s"], story.curves["step"]
    if story.last_change is None or len(steps) < 4:
        return ""
    usual = float((seconds[-1] - seconds[-4]) / 3)
    silent = time.time() - story.last_change
    if silent < max(60.0, 10 * usual):
        return ""
    return f"nothing was written for {duration(silent)}: asleep, validating, or stuck"


def _last_sample(story: RunStory) -> str | None:
    return story.samples[-1].text if story.samples else None


def clipped(text: str, console: Console, room: int) -> Text:
    """The text in at most ``room`` lines of the terminal's width."""
    width = min(console.width, 100) - 2
    lines = Text(plain(text)).wrap(console, max(10, width))
    kept = [Text("  ") + line for line in lines[:room]]
    if len(lines) > room:
        kept[-1] = Text("  …")
    return Text("\n").join(kept)


def sparkline(history: list[float | None], width: int) -> str:
    """A history as bars of the logarithms, the lowest value the lowest bar; of a long one, means of neighbours."""
    known = [value for value in history if value is not None and value > 0]
    if not known:
        return ""
    share = -(-len(known) // width)
    parts = [known[i : i + share] for i in range(0, len(known), share)]
    means = [math.log(sum(part) / len(part)) for part in parts]
    low, span = min(means), max(means) - min(means)
    return "".join(BARS[round((value - low) / span * (len(BARS) - 1)) if span else 0] for value in means)


@contextlib.contextmanager
def keys() -> Iterator[Any]:
    """A function that waits so many seconds for one of the keys that leave, and tells whether it came.

    Keys are read as they are pressed and not shown; the terminal is as before at the end, also after a signal.
    """

    def end(number: int, _frame: Any) -> None:
        raise SystemExit(128 + number)

    previous = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        if not sys.stdin.isatty():
            yield _wait_only
            return
        import termios

        handle = sys.stdin.fileno()
        before = termios.tcgetattr(handle)
        ours = termios.tcgetattr(handle)
        ours[3] &= ~(termios.ICANON | termios.ECHO)
        ours[6][termios.VINTR] = os.fpathconf(handle, "PC_VDISABLE").to_bytes(1, "little")
        termios.tcsetattr(handle, termios.TCSADRAIN, ours)
        try:
            yield lambda seconds: _pressed(handle, seconds)
        finally:
            termios.tcsetattr(handle, termios.TCSADRAIN, before)
    except KeyboardInterrupt:  # sent by another process: leaving is all there is to do
        pass
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _wait_only(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _pressed(handle: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        ready, _, _ = select.select([handle], [], [], left)
        if not ready:
            return False
        pressed = os.read(handle, 64)
        if not pressed or any(key in pressed for key in LEAVE):
            return True  # nothing to read: the terminal is gone
    return False


if __name__ == "__main__":
    cli.run(main)
