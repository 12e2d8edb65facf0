"""Tokens per second of every file, in turn: one sequence, first its prompt in one batch, then token by token.

Tested in tests/export/bench/test_sweep.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np

from slm.export.bench.config import SpeedConfig
from slm.llama.speed.timing import time_file
from slm.llama.speed.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Speed:
    """One file's medians."""

    prefill_tok_s: float
    decode_tok_s: float


@dataclass(frozen=True, kw_only=True)
class SpeedPlan:
    """What is timed, cut to the model's context, and how often."""

    workload: Workload
    rounds: int

    @staticmethod
    def of(config: SpeedConfig, n_ctx_train: int) -> "SpeedPlan":
        """The plan for a model that was trained with ``n_ctx_train`` tokens of context."""
        workload = Workload(prompt=config.prefill, tokens=config.decode).within(n_ctx_train)
        return SpeedPlan(workload=workload, rounds=config.rounds)

    def record(self) -> dict[str, int]:
        """The part of the sweep's record."""
        return {
            "prefill": self.workload.prompt,
            "decode": self.workload.tokens,
            "rounds": self.rounds,
            "sequences": 1,
        }


def measure_speed(
    plan: SpeedPlan, paths: Sequence[Path], stream: np.ndarray, threads: int, log: Callable[[str], None]
) -> list[Speed]:
    """Each file's medians over rounds in which every file has its turn. ``stream``: token ids to run."""
    workload = plan.workload
    taken: list[list[tuple[float, float]]] = [[] for _ in paths]
    began = perf_counter()
    for done in range(plan.rounds):
        for path, seconds in zip(paths, taken, strict=True):
            seconds.append(time_file(path, workload, threads, stream))
        if done == 0 and plan.rounds > 1:
            remaining_s = (perf_counter() - began) * (plan.rounds - 1)
            log(f"speed, round 1 of {plan.rounds}; {time_left(remaining_s)}")
    return [
        Speed(
            prefill_tok_s=workload.prompt / float(np.median([prefill_s for prefill_s, _ in seconds])),
            decode_tok_s=workload.tokens / float(np.median([decode_s for _, decode_s in seconds])),
        )
        for seconds in taken
    ]


def time_left(seconds: float) -> str:
    """How long it will still take, in words."""
    return f"about {seconds / 60:.1f} min left" if seconds >= 60 else f"about {seconds:.0f} s left"
