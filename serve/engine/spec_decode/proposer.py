"""What every source of draft tokens does, and the one that the configuration asks for.

Tested in tests/serve/engine/spec_decode/test_ngram.py, tests/serve/engine/spec_decode/test_draft_model.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from typing import Protocol

from slm.serve.engine.batch_plan import Sequence
from slm.serve.engine.config import EngineConfig
from slm.serve.engine.model_runner import ModelRunner
from slm.serve.engine.spec_decode.draft_model import DraftModelProposer
from slm.serve.engine.spec_decode.ngram import NgramProposer
from slm.serve.engine.spec_decode.planner import Planner
from slm.serve.engine.spec_decode.step_cost import measure_step_cost


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
