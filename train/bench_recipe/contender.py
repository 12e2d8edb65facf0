"""What every contender is given and returns, and how its processes are timed, stopped and continued.

Tested in tests/train/bench_recipe/test_bench_recipe.py.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import Any

from slm.data.errors import UserError
from slm.evaluate.progress import PLAIN_SECONDS
from slm.report import duration
from slm.train.config import TrainConfig
from slm.train.interrupt import handle_stop_signals, signal_name, start_apart
from slm.train.run.run_state import SET_UP_TOOK
from slm.train.sweep.outcome import last_error

EVERY_S = 10.0
"""Seconds between two signs of life in a terminal."""
WORDS = 100
"""Most characters of a process's log in one."""


@dataclass(frozen=True)
class Entry:
    """One trained model."""

    name: str
    model: Path
    """A Hugging Face model directory; for nanochat its base directory."""
    tokens: int
    seconds: float
    """Wall clock of its processes, from start to end."""
    training_seconds: float
    """The optimizer's steps among these."""
    note: str
    """Rate, shape, or what else tells it from others of its kind."""

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "tokens": self.tokens,
            "tokens_per_s": self.tokens / self.training_seconds if self.training_seconds else None,
            "seconds": self.seconds,
            "note": self.note,
        }


def append_finished(file: Path, name: str, entry: Entry) -> None:
    """Note in ``file`` that the run ``name`` of a comparison is done."""
    with file.open("a") as lines:
        lines.write(json.dumps({"run": name, "entry": asdict(entry) | {"model": str(entry.model)}}) + "\n")


def read_finished(file: Path) -> dict[str, Entry]:
    """What ``append_finished`` noted, by the run's name."""
    found = [json.loads(line) for line in file.read_text().splitlines()]
    return {each["run"]: Entry(**each["entry"] | {"model": Path(each["entry"]["model"])}) for each in found}


@contextmanager
def fresh_cache(folder: Path) -> Iterator[dict[str, str]]:
    """An environment with empty caches of kernels, compiled graphs and tokens: set-up counts for everybody."""
    with tempfile.TemporaryDirectory(prefix=".cache-", dir=folder) as cache:
        named = {"XDG_CACHE_HOME": cache, "SLM_CACHE": f"{cache}/slm", "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor"}
        yield {**os.environ, **named}


class StoppedContenderError(Exception):
    """A signal stopped a contender, which has saved what it could; the comparison can be continued."""


def timed(
    command: Sequence[str | Path],
    log: Path,
    *,
    environment: Mapping[str, str],
    minutes: float | None = None,
    cwd: Path | None = None,
    continues: bool = False,
    what: str = "",
) -> float:
    """Run ``command`` to its end, its output in ``log``. Seconds from its start to its end.

    ``what``: its name in a message, by default the program's and the module's. ``minutes``: what it may take, for a
    message where that is too short. ``continues``: it goes on where it was stopped, if it was, and the seconds of those
    parts count. A stop signal is passed on as Ctrl-C, and the process may save before it ends. Raises
    StoppedContenderError then, and UserError with its last words where it failed.
    """
    spent = log.with_suffix(".seconds")
    earlier = float(spent.read_text()) if continues and spent.exists() else 0.0
    stopped = False
    start = perf_counter()
    if not continues:
        log.unlink(missing_ok=True)
    process = start_apart(command, log, env=dict(environment), cwd=cwd)

    def pass_on(number: int, _frame: FrameType | None) -> None:
        nonlocal stopped
        if not stopped:
            os.write(
                2, f"\n{signal_name(number)}: {what or 'the contender'} saves what it can, then this stops\n".encode()
            )
        stopped = True
        process.send_signal(signal.SIGINT)

    before = handle_stop_signals(pass_on)
    try:
        code = _end_of(process, log, start)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    seconds = earlier + perf_counter() - start
    if stopped:
        spent.write_text(repr(seconds))
        raise StoppedContenderError
    if code:
        if minutes is not None:
            check_time_left(last_error(log), minutes)
        raise UserError(f"{what or f'{Path(command[0]).name} {command[2]}'} failed ({last_error(log)}); see {log}")
    return seconds


def _end_of(process: "subprocess.Popen[bytes]", log: Path, start: float) -> int:
    """The status of a process that is waited for, with its last words now and then: in a terminal on one line."""
    terminal = sys.stdout.isatty()
    while True:
        try:
            code = process.wait(EVERY_S if terminal else PLAIN_SECONDS)
        except subprocess.TimeoutExpired:
            said = ": ".join(filter(None, [f"  {duration(perf_counter() - start)} so far", _last_words(log)]))
            print(f"\r{said:<{WORDS + 20}}" if terminal else said, end="" if terminal else "\n", flush=True)
            continue
        if terminal:
            print(f"\r{'':<{WORDS + 20}}\r", end="", flush=True)
        return code


def _last_words(log: Path) -> str:
    """The beginning of the last line of a process's log."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 10 * WORDS))
        lines = map(str.strip, file.read().decode(errors="replace").splitlines())
    return next((line[:WORDS] for line in reversed([*lines]) if line), "")


def check_time_left(said: str, minutes: float) -> None:
    """UserError where ``said``, the last words of a contender, says that ``minutes`` ended before its set-up."""
    if said.startswith(SET_UP_TOOK):
        took = said.removeprefix(SET_UP_TOOK).partition(",")[0].strip()
        raise UserError(
            f"minutes={minutes:g} is too short: set-up, which everybody does with empty caches here, took {took} "
            "(minutes and seconds); give more minutes"
        )


def steps_of(tokens: Sequence[int]) -> Sequence[int | None]:
    """The steps that an option asks a contender to try; None where it asks for none: as many tokens as ours."""
    return tokens or [None]


def step_note(tokens: int | None) -> str:
    """What a run's name says of its step; nothing of as many tokens as ours."""
    return f", {tokens:,} tokens a step" if tokens else ""


def passes_of_a_step(tokens: int, train: TrainConfig) -> tuple[int, int]:
    """Sequences of a pass, and passes, of a step of about ``tokens``, in whole sequences: a pass has at most ours."""
    sequences = max(1, round(tokens / train.seq_len))
    in_a_pass = max(n for n in range(1, train.micro_batch + 1) if sequences % n == 0)
    return in_a_pass, sequences // in_a_pass


def python_module(module: str, *words: str) -> list[str]:
    """``python -m module words`` with this Python."""
    return [sys.executable, "-m", module, *words]
