"""Tokens per second of every file: one sequence, first its prompt in one batch, then token by token.

Tested in tests/export/bench/test_sweep.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np

from export.bench.config import SpeedConfig
from slm.llama.context import Batch, Context
from slm.llama.model import Model


@dataclass(frozen=True, kw_only=True)
class Speed:
    """One file's medians."""

    prefill_tok_s: float
    decode_tok_s: float


@dataclass(frozen=True, kw_only=True)
class SpeedPlan:
    """How many tokens are timed, cut to the model's context."""

    prefill: int
    decode: int
    rounds: int

    @staticmethod
    def of(config: SpeedConfig, n_ctx_train: int) -> "SpeedPlan":
        """The plan for a model that was trained with ``n_ctx_train`` tokens of context."""
        decode = min(config.decode, n_ctx_train // 2)
        return SpeedPlan(prefill=min(config.prefill, n_ctx_train - decode), decode=decode, rounds=config.rounds)

    def record(self) -> dict[str, int]:
        """The part of the sweep's record."""
        return {"prefill": self.prefill, "decode": self.decode, "rounds": self.rounds, "sequences": 1}


def measure_speed(
    plan: SpeedPlan, paths: Sequence[Path], stream: np.ndarray, threads: int, log: Callable[[str], None]
) -> list[Speed]:
    """Each file's medians over rounds in which every file has its turn. ``stream``: token ids to run."""
    tokens = np.resize(stream, plan.prefill + plan.decode)
    taken: list[list[tuple[float, float]]] = [[] for _ in paths]
    began = perf_counter()
    for done in range(plan.rounds):
        for path, seconds in zip(paths, taken, strict=True):
            seconds.append(time_file(path, tokens, plan.prefill, threads))
        if done == 0 and plan.rounds > 1:
            remaining_s = (perf_counter() - began) * (plan.rounds - 1)
            log(f"speed, round 1 of {plan.rounds}; {time_left(remaining_s)}")
    return [
        Speed(
            prefill_tok_s=plan.prefill / float(np.median([prefill_s for prefill_s, _ in seconds])),
            decode_tok_s=plan.decode / float(np.median([decode_s for _, decode_s in seconds])),
        )
        for seconds in taken
    ]


def time_file(path: Path, tokens: np.ndarray, prefill: int, threads: int) -> tuple[float, float]:
    """Seconds of the first ``prefill`` tokens in one batch, and of the others one at a time."""
    with Model(path) as model, Context(model, n_ctx=len(tokens), n_batch=prefill, n_threads=threads) as context:
        batch = Batch(prefill)

        def run(ids: np.ndarray, position: int) -> None:
            batch.clear()
            batch.extend(ids.tolist(), position, 0, logits=True)
            context.decode(batch)
            context.row(len(batch) - 1)

        run(tokens[:prefill], 0)  # the first pass reads the file and makes the buffers
        run(tokens[prefill : prefill + 1], prefill)
        context.clear()
        began = perf_counter()
        run(tokens[:prefill], 0)
        between = perf_counter()
        for position in range(prefill, len(tokens)):
            run(tokens[position : position + 1], position)
        return between - began, perf_counter() - between


def time_left(seconds: float) -> str:
    """How long it will still take, in words."""
    return f"about {seconds / 60:.1f} min left" if seconds >= 60 else f"about {seconds:.0f} s left"
