"""``train.qat``: the last part of a run computes with the weights that a quantized file will hold.

Where that part has few steps, four bits are rounded once instead, after the last of them.

Tested in tests/train/qat/test_quantized_run.py.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from torch import Tensor

from slm.data.errors import UserError
from slm.runs import CALIBRATION
from slm.train.components.component import Component, Content, Step
from slm.train.config import TrainConfig
from slm.train.parts import Parts
from slm.train.qat.fake_quant import ROUNDED_ONCE, FakeQuant, is_state
from slm.train.qat.moments import FEWEST, MOST, PART, WINDOW, input_moments


@dataclass(frozen=True, kw_only=True)
class QuantizationOptions:
    """``components.quantization``: when ``train.qat`` holds."""

    share: float = 0.1
    """The last share of the run (of its steps, or of its time where that bounds it) that computes with such weights."""
    least_steps: int = 50
    """Where that share would have fewer steps, weights are rounded once instead, at the end of the run. Three bits and
    ternary weights cannot do without training."""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise UserError(
                f"components.quantization.share must be above 0 and at most 1, for example 0.1, not {self.share}"
            )
        if self.least_steps < 0:
            raise UserError(f"components.quantization.least_steps must not be negative, not {self.least_steps}")


class Quantization(Component):
    """``train``: the options of the run, with ``qat``."""

    name = "quantization"

    def __init__(self, train: TrainConfig, options: QuantizationOptions | None = None) -> None:
        self._train, self._options = train, options or QuantizationOptions()
        self._seconds = 0.0

    def note(self) -> str | None:
        """Where training on rounded weights would have too few steps to be worth it."""
        train, least = self._train, self._options.least_steps
        steps = train.max_steps - math.ceil((1 - self._options.share) * train.max_steps)
        if train.qat not in ROUNDED_ONCE or train.max_minutes is not None or steps >= least:
            return None
        return (
            f"train.qat={train.qat} would hold for {steps:,} of {train.max_steps:,} steps, fewer than "
            f"components.quantization.least_steps={least}: the weights are rounded once, at the end"
        )

    def attach(self, run: Parts) -> None:
        super().attach(run)
        self._quant = FakeQuant(
            run.model,
            self._train.qat,
            self._options.share,
            run.environment.threads,
            least_steps=self._options.least_steps,
        )

    # Around a step.

    def before_step(self, step: Step) -> None:
        if self._quant.due(self.run.fraction_done()) and not self._quant.waits(self.run.steps_left()):
            self._begin()

    def before_update(self) -> None:
        self._quant.show_masters()

    def after_update(self) -> None:
        self._quant.after_update(self.run.state.step)

    @contextmanager
    def masters(self) -> Iterator[None]:
        with self._quant.masters():
            yield

    def _begin(self) -> None:
        """From this step on the model computes with quantized weights."""
        run = self.run
        moments: dict[str, Tensor] = {}
        steps_left = run.steps_left()
        tokens = max(self._options.share * run.state.tokens, (steps_left or 0) * self._train.tokens_per_step)
        if self._quant.weighted:
            moments = run.ranks.broadcast_from_main(lambda: self._moments(tokens))
        self._quant.begin(moments, steps_left)
        run.backend.weights_changed()
        run.forget_losses()
        counts = Counter(self._quant.types.values())
        types = ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
        line = (
            f"from here on the model computes with the weights of a {self._quant.file_type} file ({counts.total()} "
            f"tensors: {types})"
        )
        facts = {"file_type": self._quant.file_type, "tensors": counts.total(), "types": types}
        run.log.event("quantized", run.state.step, line, **facts)

    def _moments(self, tokens: float) -> dict[str, Tensor]:
        text = (self.run.root / CALIBRATION).read_text("utf-8")
        kernels = self.run.environment.kernels
        return input_moments(self.run.model, self.run.tokenizer, text, training_tokens=tokens, kernels=kernels)

    # The end of the run.

    def changes_at_end(self) -> bool:
        return self.run.fraction_done() >= 1 and self._quant.due(1.0)

    def at_end(self) -> bool:
        # Patience or text may have ended the run before the share that trains so.
        if self._quant.due(1.0 if self._quant.waits(0) else self.run.fraction_done()):
            self._begin()
            return True
        if not self._quant.on:
            self.run.log.print(f"the run ended before train.qat={self._train.qat} began: it is not quantized")
        return False

    def closing_seconds(self) -> float:
        """From trials of a part of it: the inputs of some text, and one matrix. 0 where training goes on with rounded
        weights before the end."""
        left, done = self.run.steps_left(), self.run.fraction_done()
        if not self._quant.rounds_once or left is None or not 0 < done < 1:
            return 0.0
        if not self._quant.waits(min(left, self._options.share * left / (1 - done))):
            return 0.0
        if not self._seconds:
            if self._quant.weighted:
                self._moments(0.0)  # compiles, or loads what it needs; that happens once
                began = perf_counter()
                self._moments(0.0)
                tokens = self._options.share * self.run.state.tokens / done
                pieces = min(MOST, max(FEWEST, tokens / PART / WINDOW))
                self._seconds = (perf_counter() - began) * pieces / FEWEST
            self._seconds += self._quant.trial_seconds()
        return self._seconds

    def unfinished(self, state: Mapping[str, Any]) -> bool:
        # It comes after the last update, and a stop in it leaves the checkpoint from before.
        asked = self._train.qat in ROUNDED_ONCE and self._options.least_steps and "qat" not in state
        return bool(asked) and ((state.get("config") or {}).get("train") or {}).get("qat") == self._train.qat

    # Checkpoints.

    def owns(self, name: str) -> bool:
        return is_state(name)

    def shared(self) -> list[Tensor]:
        return self._quant.tensors()

    def resynced(self) -> None:
        self._quant.resynced()

    def save(self, content: Content) -> None:
        content.weights, more, content.quantized = self._quant.checkpoint(content.weights)
        content.tensors |= more
        if content.quantized is not None:
            content.state["qat"] = content.quantized.record()

    def clear(self) -> None:
        self._quant.end()

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self._quant.load(tensors)
        self._quant.resume()
