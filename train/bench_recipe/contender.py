"""What every contender is given and returns, and how its processes are timed.

Tested in tests/train/bench_recipe/test_bench_recipe.py.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from data.errors import UserError
from train.config import TrainConfig
from train.run.run_state import SET_UP_TOOK
from train.sweep.outcome import last_error


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
    """Of these, the optimizer's steps."""
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


@contextmanager
def fresh_cache(folder: Path) -> Iterator[dict[str, str]]:
    """An environment whose caches of kernels, compiled graphs and tokens are empty: set-up counts for everybody."""
    with tempfile.TemporaryDirectory(prefix=".cache-", dir=folder) as cache:
        named = {"XDG_CACHE_HOME": cache, "SLM_CACHE": f"{cache}/slm", "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor"}
        yield {**os.environ, **named}


def timed(
    command: Sequence[str | Path],
    log: Path,
    *,
    environment: Mapping[str, str],
    minutes: float | None = None,
    cwd: Path | None = None,
) -> float:
    """Run ``command`` to its end, its output in ``log``. Seconds; UserError with its last words where it failed.

    ``minutes``: what it may take, for a message where that is too short.
    """
    start = perf_counter()
    with log.open("wb") as output:
        done = subprocess.run(
            [str(word) for word in command],
            env=dict(environment),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    if done.returncode:
        if minutes is not None:
            check_time_left(last_error(log), minutes)
        raise UserError(f"{Path(command[0]).name} {command[2]} failed ({last_error(log)}); see {log}")
    return perf_counter() - start


def check_time_left(said: str, minutes: float) -> None:
    """UserError where ``said``, the last words of a contender, says that ``minutes`` ended before its set-up."""
    if said.startswith(SET_UP_TOOK):
        took = said.removeprefix(SET_UP_TOOK).partition(",")[0].strip()
        raise UserError(
            f"minutes={minutes:g} is too short: set-up, which everybody does with empty caches here, took {took} "
            "(minutes and seconds); give more minutes"
        )


def passes_of_a_step(option: str, tokens: int, train: TrainConfig) -> tuple[int, int]:
    """Sequences of a pass, and passes, of a step of ``tokens``: a pass has at most ours.

    UserError, naming ``option``, where they are no whole number of sequences.
    """
    if tokens % train.seq_len:
        near = max(1, round(tokens / train.seq_len)) * train.seq_len
        raise UserError(f"{option}: {tokens} is no multiple of the sequences' {train.seq_len}; {near} would do")
    sequences = tokens // train.seq_len
    in_a_pass = max(n for n in range(1, train.micro_batch + 1) if sequences % n == 0)
    return in_a_pass, sequences // in_a_pass


def python_module(module: str, *words: str) -> list[str]:
    """``python -m module words`` with this Python."""
    return [sys.executable, "-m", module, *words]
