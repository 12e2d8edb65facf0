"""The phases of a run: its blocks are read as bags of tokens, in short sequences, or whole.

The place in the list only grows, and is in the checkpoint: a run that is given more time when it goes on does not
enter a phase again, though a smaller share of it is done.

Shape suffixes: B blocks, T tokens of a block that the model reads, L of a short sequence.

Tested in tests/train/components/test_phases.py, tests/train/objective/test_superposition.py.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from slm.train.components.component import Component, Step
from slm.train.objective.superposition import Superposition, joined
from slm.train.phases import Phase
from slm.train.run.metrics_window import MetricsWindow

WHOLE = Phase(until=1.0)


class Phases(Component):
    """``phases``: ``train.phases``. A step has as many positions in each of them."""

    name = "phases"

    def __init__(self, phases: Sequence[Phase]) -> None:
        self._all = tuple(phases)
        self.place = 0
        """How many phases are over."""
        self._bag: int | None = None
        """Tokens at one position in the last step; None before the first."""
        self._length: int | None = None
        """Tokens of the last step's sequences."""

    def before_step(self, step: Step) -> None:
        train = self.run.config.train
        while self.place < len(self._all) and step.fraction_done >= self._all[self.place].until:
            self.place += 1
        now = self._all[self.place] if self.place < len(self._all) else WHOLE
        bag = now.bags
        if bag != (self._bag or 1):
            self._tell_bags(bag, now.until)
        length = now.seq_len or train.seq_len
        if length != (self._length or train.seq_len):
            self._tell_length(length, now.until)
        self._bag, self._length = bag, length
        if bag > 1:
            step.objective = Superposition(
                bag, sampled=train.sampled_softmax, vocab_size=self.run.model.config.vocab_size
            )
            step.batches = joined(step.batches, bag)
        elif length < train.seq_len:
            step.batches = cut(step.batches, length)

    def _tell_bags(self, bag: int, until: float) -> None:
        """Losses of other bags cannot be compared."""
        self.run.forget_losses()
        self.run.state.window = MetricsWindow()
        step = self.run.state.step
        if bag > 1:
            line = (
                f"bags of {bag} tokens for the first {until:.0%} of the run: the loss counts the next bag's "
                "tokens, and tokens/s counts bags"
            )
            self.run.log.event("superposed", step, line, bag=bag, share=until)
        else:
            line = "from here on single tokens: losses before this cannot be compared"
            self.run.log.event("single_tokens", step, line)

    def _tell_length(self, length: int, until: float) -> None:
        short = length < self.run.config.train.seq_len
        part = f"for the first {until:.0%} of the run" if short else "from here on"
        self.run.log.print(f"step {self.run.state.step:,}: sequences of {length:,} tokens {part}")

    def record(self) -> dict[str, Any]:
        return {"bag": self._bag} if self._bag and self._bag > 1 else {}

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place, "bag": self._bag or 1} if self._all else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.place, self._bag = state.get("place", 0), state.get("bag")


def cut(batches: Iterator[np.ndarray], length: int) -> Iterator[np.ndarray]:
    """Blocks [B, T + 1] as sequences [B T / L, L + 1]; each begins with the last target of the one before."""
    for block_BT1 in batches:
        starts = range(0, block_BT1.shape[1] - 1, length)
        yield np.concatenate([block_BT1[:, start : start + length + 1] for start in starts])
