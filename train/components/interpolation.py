"""``components.interpolation``: at the end of a tuning the weights go part of the way back to the model it began from.

A short tuning at a high rate moves the weights farther than what it learned needs, and what the base knew beside it is
lost on the way. On the line between base and tuned weights both can be had (Wortsman et al. 2021, "Robust fine-tuning
of zero-shot models", arXiv 2109.01903): the nearest point is taken that has still learned nearly as much.

Tested in tests/train/components/test_interpolation.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from slm.data.errors import UserError
from slm.model import resize
from slm.model.stored_weights import stream_weights
from slm.train.components.component import Component, Step
from slm.train.config import RunConfig

SHARES = (0.5, 0.6, 0.7, 0.8, 0.9)
"""Shares of the way from the base to the tuned weights that may be kept."""
LEARNED = 0.985
"""Share of the fall of the validation loss that must remain."""
MOST_RISE = 0.025
"""Nats per token by which it may rise at most, however far it fell."""
EVALUATIONS = 3.5
"""Validations that the search takes at most; the half is for moving the weights."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """``components.interpolation``."""

    kept: float | None = None
    """Share of the change of the weights that is kept; None: the least of ``SHARES`` that keeps ``LEARNED``."""

    def make(self) -> Component:
        return Interpolation(self)


class Interpolation(Component):
    """Moves a tuned model's weights towards its base's, after the last step."""

    name = "interpolation"

    def __init__(self, options: Options) -> None:
        self._options = options
        self._before: float | None = None
        self._done_at: int | None = None
        """The step at which the weights were moved."""
        self._share = 1.0
        """Where the weights are on the way from the base (0) to what was trained (1)."""
        self._seconds = 0.0

    def check(self, config: RunConfig) -> None:
        if not config.init_from:
            raise UserError("components.interpolation goes back towards a base: name that model with init_from=DIR")
        if config.lora.rank or config.train.qat:
            raise UserError("components.interpolation moves all weights: leave it out with lora.rank or train.qat")
        if self._options.kept is not None and not 0 < self._options.kept <= 1:
            raise UserError(f"components.interpolation.kept is {self._options.kept} and must be above 0, at most 1")

    def before_step(self, step: Step) -> None:
        if step.number or self._before is not None or self._options.kept is not None:
            return
        began = perf_counter()
        self._before = self._loss()
        self._seconds = perf_counter() - began

    def changes_at_end(self) -> bool:
        return self._due() and self.run.fraction_done() >= 1

    def at_end(self) -> bool:
        if not self._due():
            return False
        run, state = self.run, self.run.state
        try:
            with run.log.doing("weights between the base's and the tuned ones"):
                found = self._search()
                self._move(found[0] if found else 1.0)
        except UserError as error:
            run.log.print(
                f"the weights keep {self._share:g} of their change from the base, which cannot be read: {error}"
            )
            return self._share != 1
        if found is None:  # a signal
            return False
        share, tuned, loss = found
        self._done_at = state.step
        if share == 1:
            return False
        run.forget_losses()
        losses = (
            "" if tuned is None else f": {tuned:.4f} -> {loss:.4f} nats per token, {self._before:.4f} before tuning"
        )
        line = f"the weights keep {share:g} of their change from the base (components.interpolation){losses}"
        run.log.event("interpolated", state.step, line, share=share, before=tuned, after=loss)
        return True

    def closing_seconds(self) -> float:
        return self._seconds * EVALUATIONS if self._due() else 0.0

    def state_dict(self) -> dict[str, Any]:
        own: dict[str, Any] = {} if self._before is None else {"before": self._before}
        if self._done_at == self.run.state.step:
            own |= {"done_at": self._done_at, "share": self._share}
        return own

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._before, self._done_at, self._share = state.get("before"), state.get("done_at"), 1.0

    def _due(self) -> bool:
        if self._done_at == self.run.state.step or not self.run.state.step:
            return False
        return self._options.kept is not None or self._before is not None

    def _search(self) -> tuple[float, float | None, float | None] | None:
        """The share to keep, the loss of the tuned weights, and the loss there; None: a signal came."""
        if self._options.kept is not None:
            return self._options.kept, None, None
        assert self._before is not None
        if (tuned := self._loss()) is None:
            return None
        best = min(tuned, self.run.state.best_loss)
        most = best + min(MOST_RISE, (1 - LEARNED) * max(0.0, self._before - best))
        shares, losses = [*SHARES, 1.0], {1.0: tuned}
        low, high = 0, len(SHARES)
        while low < high:  # the loss falls along the way
            middle = (low + high) // 2
            self._move(shares[middle])
            if (loss := self._loss()) is None:
                return None
            losses[shares[middle]] = loss
            low, high = (low, middle) if loss <= most else (middle + 1, high)
        share = shares[high] if losses[shares[high]] <= most else 1.0
        return share, tuned, losses[share]

    def _loss(self) -> float | None:
        run = self.run
        result = run.validator(run.backend, run.sync.signal_received, run.ranks, run.log.done)
        if result is None:
            run.sync.agree_on_signal()
            return None
        return result.loss

    @torch.no_grad()
    def _move(self, share: float) -> None:
        """Go to this share of the way. The base is read again, a tensor at a time."""
        if share == self._share:
            return
        run, ratio = self.run, share / self._share
        shape = run.model.config
        assert run.config.init_from
        for name, stored in stream_weights(run.config.init_from, tied=shape.tie_embeddings):
            weight = run.model.get_parameter(name)
            if not weight.requires_grad:  # it is still the base's
                continue
            base = resize.with_rows(stored, shape.vocab_size) if name in resize.TABLES else stored
            weight.copy_(torch.lerp(base.to(weight.dtype), weight, ratio))
        self._share = share
        run.backend.weights_changed()
