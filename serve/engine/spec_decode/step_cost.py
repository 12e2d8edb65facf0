"""Measures how long forward passes take, so that the planner can decide how many draft tokens pay."""

from __future__ import annotations

import time

from slm.data.errors import UserError
from slm.llama.context import Batch, Context
from slm.serve.engine.spec_decode.planner import StepCost

_MEASURED_ROWS = (1, 2, 4, 8, 12, 15, 16, 24, 31, 32)
"""Matrix kernels take rows by fours or sixteens, so one row less can cost more."""


def measure_step_cost(context: Context, batch: Batch) -> StepCost:
    """How long passes of different numbers of rows take; clears the cache. Raises ``UserError`` if the model's cache
    cannot take back tokens."""
    if not context.model.keeps_cells:
        raise UserError(f"the cache of {context.model.path} cannot take back tokens; use serve.speculate=none")
    seconds: dict[int, float] = {}
    # In rounds: a moment in which the machine is busy with something else must not spoil all measurements of a size.
    for _ in range(3):
        for n in _MEASURED_ROWS:
            if n > batch.capacity:
                break
            batch.clear()
            batch.extend([0] * n, 0, 0, True, every=True)
            began = time.perf_counter()
            context.decode(batch)
            took = time.perf_counter() - began
            seconds[n] = min(took, seconds.get(n, took))
            context.clear()
    return StepCost(tuple(seconds), tuple(seconds.values()))
