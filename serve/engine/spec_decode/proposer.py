"""What every source of draft tokens does, and the one that the configuration asks for.

How long forward passes take is measured here, too: the planner decides by it how many draft tokens pay.

Tested in tests/serve/engine/spec_decode/test_ngram.py, tests/serve/engine/spec_decode/test_draft_model.py.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from typing import Protocol

from slm.data.errors import UserError
from slm.llama.context import Batch, Context
from slm.serve.engine.config import EngineConfig
from slm.serve.engine.model_runner import ModelRunner
from slm.serve.engine.sequence import Sequence
from slm.serve.engine.spec_decode.draft_model import DraftModelProposer
from slm.serve.engine.spec_decode.ngram import NgramProposer
from slm.serve.engine.spec_decode.planner import Planner, StepCost

_MEASURED_ROWS = (1, 2, 4, 8, 12, 15, 16, 24, 31, 32)
"""Matrix kernels take rows by fours or sixteens, so one row less can cost more."""


def measure_step_cost(context: Context, batch: Batch) -> StepCost:
    """How long passes of different numbers of rows take; clears the cache. Raises ``UserError`` for a model whose cache
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


class Proposer(Protocol):
    """A source of draft tokens. The engine verifies them; a sequence's own sampler decides which are accepted."""

    def propose(self, sequences: Seq[Sequence], most: Mapping[str, int], room: int) -> dict[str, tuple[int, ...]]:
        """Draft tokens by sequence id, for sequences that generate. ``most``: how many each may get; those without an
        entry get none. ``room``: most rows of the batch."""
        ...

    def observe(self, sequence_id: str, n_drafted: int, n_accepted: int) -> None:
        """What became of the last draft tokens of a sequence."""
        ...

    def forget(self, sequence_id: str) -> None:
        """The sequence has ended."""
        ...

    def close(self) -> None:
        """Frees what the source holds."""
        ...


def make_proposer(config: EngineConfig, runner: ModelRunner) -> Proposer | None:
    """The source of draft tokens that ``config.speculate`` names; None for "none". Measures the cost of a step, which
    clears the runner's cache. Raises ``UserError`` where the model or its draft model cannot be used for that."""
    if config.speculate == "none":
        return None
    if config.speculate == "draft":
        return DraftModelProposer(config, runner)
    cost = measure_step_cost(runner.context, runner.batch)
    return NgramProposer(Planner(cost, shared=config.kv_tokens > 0, always=config.draft_tokens))
