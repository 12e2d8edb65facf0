"""``python -m slm.train.report.watch``: follow a run from another terminal.

``watch.json=true`` prints all that is known of it as plain values for programs.

It only reads the run's files, so it can be started and left at any time, as often as one likes.
"""

import contextlib
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from slm import cli
from slm.configuration import build, load_config
from slm.data.errors import UserError
from slm.report import final_json
from slm.runs import CONFIG, LATEST, RUNS, checkpoint_step, list_checkpoints, place, teacher_folder
from slm.train.report.event_text import describe_events, is_serious
from slm.train.report.run_record import RunRecord, find_run
from slm.train.report.run_view import headline, validation_line, view
from slm.train.report.terminal_keys import leave_key
from slm.train.run_lock import LOCK, is_locked

POINTS = 300
"""The most points of each curve."""
CURVES = ("step", "tokens", "elapsed_s", "loss", "tokens_per_s")


def run_state(run: RunRecord, status: str) -> dict[str, Any]:
    """The run's progress, curves, validations, samples, events and kept checkpoints (``saves``).

    Times are seconds, losses nats per token (``loss_unit``). ``curve``: columns of at most ``POINTS`` means.
    ``predicted`` is what the plan said before the run, ``forecast`` what the run says of its end now.
    """
    points = run.curves.points(POINTS)
    best = run.best()
    return {
        "name": run.name,
        "status": status,
        "step": run.step(),
        "planned_steps": run.planned_steps(),
        "tokens": run.tokens(),
        "progress": run.progress(),
        "elapsed_s": run.elapsed(),
        "seconds_left": run.seconds_left() if status == "running" else None,
        "tokens_per_s": run.recent("tokens_per_s"),
        "rss_gb": run.recent("rss_gb"),
        "loss": run.recent("loss"),
        "loss_unit": run.loss_unit,
        "predicted": run.setting("facts.predicted"),
        "forecast": run.forecast(),
        "model": run.model_facts(),
        "best_step": best.step if best else None,
        "curve": {name: points.mean(name).tolist() for name in CURVES},
        "validations": [asdict(each) for each in run.validations],
        "samples": [asdict(each) for each in run.samples],
        "events": [
            {"kind": each.kind, "step": each.step, "time": each.time, "serious": is_serious(each), "text": text}
            for each, text in describe_events(run)
        ],
        "saves": _saves(run.root),
    }


def _saves(root: Path) -> list[dict[str, Any]]:
    """The checkpoints that are kept: step, and time in seconds since 1970."""
    found = []
    for path in list_checkpoints(root):
        with contextlib.suppress(OSError):  # a newer one has just taken its room
            found.append({"step": checkpoint_step(path), "time": path.stat().st_mtime})
    return found


@dataclass(frozen=True, kw_only=True)
class WatchOptions:
    """How to follow the run."""

    once: bool = False
    """Show the run once and leave."""
    json: bool = False
    """Print one line of JSON for each state of the run, for programs, and nothing else."""
    every_s: float = 1.0
    """Seconds between two readings of the files."""
    patience_s: float = 30.0
    """How long to wait for a run that ended unexpectedly to come back, seconds."""

    def __post_init__(self) -> None:
        if not 0.05 <= self.every_s <= 3600:
            raise UserError(f"watch.every_s must be from 0.05 to 3600 seconds, not {self.every_s}")
        if not 0 <= self.patience_s <= 86400:
            raise UserError(f"watch.patience_s must be from 0 to 86400 seconds, not {self.patience_s}")


@dataclass(frozen=True, kw_only=True)
class WatchConfig:
    """Which run to follow, and how."""

    run: str = "runs/latest"
    watch: WatchOptions = field(default_factory=WatchOptions)


class FollowedRun:
    """A run's record and its status. If another run takes its place in the directory, that one is followed.

    Before a run that is taught (``distill.born_again``) comes its teacher, which is followed until the run begins.
    """

    def __init__(self, root: Path, patience_s: float) -> None:
        self._given, self._patience = root, patience_s
        self.root = _of_now(root)
        self.record, self.status = RunRecord(self.root), ""
        self.changed = False
        """Whether the last ``update`` found something new."""
        self._identity: tuple[int, int] | None = None
        self._gone_since: float | None = None

    def update(self) -> None:
        """Read what is new."""
        self.root = _of_now(self._given)
        identity = self._inode()
        if identity != self._identity:
            # The run was set aside and started anew under the same name, or is away for a moment between the two.
            if self._identity is not None and identity is not None:
                self.record = RunRecord(self.root)
            self._identity = identity or self._identity
        held = is_locked(self.root / LOCK)
        self.changed = self.record.update()
        self.status = self.record.status(held)

    def is_over(self) -> bool:
        """Whether there is nothing more to wait for."""
        if self.status == "running":
            self._gone_since = None
            return False
        taught_next = self.status == "finished" and self.root != self._given
        if self.status != "gone" and not taught_next and self._inode() is not None:
            return True
        # It was killed; whatever supervises it may start it again. Or the run that it teaches begins.
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
    config = build(WatchConfig, load_config("watch", argv, literal=("run",)))
    followed = FollowedRun(_find_when_begun(config), config.watch.patience_s)
    followed.update()
    console = Console()
    if config.watch.json:
        _follow_in_json(followed, config.watch.every_s, once=config.watch.once)
    elif config.watch.once or followed.status != "running":
        console.print(view(followed.record, followed.status, console), end="")
    elif console.is_terminal:
        _follow_live(followed, console, config.watch.every_s)
    else:
        _follow_in_lines(followed, config.watch.every_s)
    return 0


def _has_begun(root: Path) -> bool:
    return (root / "metrics.jsonl").exists() or (root / CONFIG).exists()


def _of_now(root: Path) -> Path:
    """The run in ``root``, or its teacher where that alone has begun."""
    teacher = teacher_folder(root)
    return teacher if _has_begun(teacher) and not _has_begun(root) else root


def _find_when_begun(config: WatchConfig) -> Path:
    """The run's directory. A start that has not written its settings yet is waited for."""
    waiting = False
    while True:
        try:
            return find_run(config.run)
        except UserError:
            given = place(config.run)
            for root in (given, RUNS / given):
                if _has_begun(teacher_folder(root)):
                    return root.resolve()
            starting = given.parent.glob("*") if given.name == LATEST else [given]
            if config.watch.once or not any(is_locked(each / LOCK) for each in starting):
                raise
        if not waiting and not config.watch.json:
            print(f"waiting for the run in {config.run} to begin (Ctrl-C leaves)", flush=True)
            waiting = True
        time.sleep(config.watch.every_s)


def _follow_live(followed: FollowedRun, console: Console, every_s: float) -> None:
    """Draw the view again and again in the same place."""
    with leave_key() as pressed, Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            live.update(view(followed.record, followed.status, console, live=True), refresh=True)
            if pressed(every_s):
                break
            followed.update()
            if followed.is_over():
                break
        live.update(view(followed.record, followed.status, console), refresh=True)


def _follow_in_lines(followed: FollowedRun, every_s: float) -> None:
    """Print a line for every validation, for a pipe or a file."""
    record, printed_step = followed.record, 0
    print(headline(record, followed.status), flush=True)
    while True:
        if followed.record is not record:
            record, printed_step = followed.record, 0
            print(headline(record, followed.status), flush=True)
        for validation in record.validations:
            if validation.step > printed_step:
                print(validation_line(record, validation), flush=True)
        printed_step = max((validation.step for validation in record.validations), default=0)
        if followed.is_over():
            break
        time.sleep(every_s)
        followed.update()
    print(headline(followed.record, followed.status), flush=True)


def _follow_in_json(followed: FollowedRun, every_s: float, *, once: bool) -> None:
    """Print the run's state as one line of JSON, and again whenever something was written, until the run is over."""
    shown: tuple[object, str, float | None] | None = None
    while True:
        state = (followed.record, followed.status, followed.record.last_change)
        if state != shown or followed.changed:
            final_json(run_state(followed.record, followed.status))
            shown = state
        if once or followed.is_over():
            return
        time.sleep(every_s)
        followed.update()


if __name__ == "__main__":
    cli.run(main)
