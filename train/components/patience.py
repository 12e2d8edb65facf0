"""``train.patience``: a run ends when its validations do not improve any more.

Tested in tests/train/components/test_patience.py, tests/train/test_reliability.py.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slm.train.components.component import Component
from slm.train.run.run_state import comparable_loss

FALLS = 0.9
"""A run still learns while its training loss is below this share of what it was at the lowest validation loss."""
LEARNED, IN_A_ROW = 1e-3, 2
"""Nothing is left to learn where held-out text costs less than this many nats per token, twice in a row."""
HARD = 0.5
"""Held-out text does not follow from the training text where the training loss is below this share of the lowest
validation loss."""


@dataclass(frozen=True, kw_only=True)
class PatienceOptions:
    """``components.patience``, options of ``train.patience``."""

    learns: bool = False
    """Whether the run must learn its training text, as a tuned one must: a fact of a single conversation follows from
    no other, so held-out conversations get worse while it is learned. Validations then end the run only where the
    training loss does not fall either, and at the end of such a run its last checkpoint is the best one. It ends, too,
    where the held-out conversations are known (``LEARNED``): more updates would only forget what was known before."""


class Patience(Component):
    """``most``: this many validations in a row without a lower loss end the run; 0: never."""

    name = "patience"

    def __init__(self, most: int, options: PatienceOptions | None = None) -> None:
        self._most, self._options = most, options or PatienceOptions()
        self._ended = self._last = False
        self.worse = 0
        """Validations in a row that came after the lowest loss."""
        self._sum, self._steps = 0.0, 0
        """Training loss of the steps since the last validation."""
        self._loss = self._loss_then = math.inf
        """Its mean before the last validation, and before that with the lowest loss."""
        self._best_step = 0
        self._known = 0
        """Validations in a row with a loss below ``LEARNED``."""

    def jumped(self, loss: float) -> float | None:
        # The hook that is told each step's loss; the run never goes back from it.
        self._sum, self._steps = self._sum + loss, self._steps + 1
        return None

    def validated(self, *, improved: bool) -> None:
        self.worse = 0 if improved else self.worse + 1
        if not self._options.learns:
            return
        self._known = self._known + 1 if self.run.state.validation["val_loss"] < LEARNED else 0
        if self._steps:
            self._loss, self._sum, self._steps = self._sum / self._steps, 0.0, 0
        if improved:
            self._loss_then, self._best_step = self._loss, self.run.state.step
        elif self.worse == self._most and self._learns:
            self.run.log.print(
                f"step {self.run.state.step:,}: the last {self._most} validations did not improve on "
                f"{self.run.state.best_loss:.4f} {self._unit}, but in training the loss fell from "
                f"{self._loss_then:.3f} to {self._loss:.3f} since: the run goes on"
            )

    def forget_losses(self) -> None:
        self.worse = 0

    @property
    def _unit(self) -> str:
        return self.run.config.preference.loss_unit

    @property
    def _learns(self) -> bool:
        return self._options.learns and self._loss < FALLS * self._loss_then

    @property
    def _over(self) -> bool:
        return 0 < self._most <= self.worse and not self._learns

    @property
    def _done(self) -> bool:
        return self._known >= IN_A_ROW

    def ends(self) -> str | None:
        if self._done:
            loss = self.run.state.validation["val_loss"]
            return f"the held-out conversations are at {loss:.4f} {self._unit}: nothing is left to learn"
        if not self._over:
            return None
        return f"the last {self._most} validations did not improve on {self.run.state.best_loss:.4f} {self._unit}"

    def at_end(self) -> bool:
        self._ended = self._over or self._done
        if self._options.learns and not self._ended and self.worse:
            self._take_last()
        return False

    def _take_last(self) -> None:
        """Make the last checkpoint the best one where held-out text does not follow from the training text."""
        state = self.run.state
        loss = self._sum / self._steps if self._steps else self._loss
        if not loss < HARD * state.best_loss:
            return
        lowest, validated = state.best_loss, state.validation.get("step") == state.step
        line = (
            f"held-out conversations had their lowest loss, {lowest:.4f} {self._unit}, at step {self._best_step:,}; "
            f"those in training are at {loss:.3f} now: what is held out does not follow from what is learned, so the "
            "last checkpoint is taken (train.patience=3 takes the one with the lowest held-out loss)"
        )
        state.best_loss = comparable_loss(state.validation) if validated else math.inf
        self._last = True
        self.run.log.event("last_taken", state.step, line, best_step=self._best_step, val_loss=lowest, loss=loss)

    def ended_early(self, state: Mapping[str, Any]) -> tuple[str, str] | None:
        own = state.get(self.name) or {}
        if own.get("known", 0) >= IN_A_ROW:
            return f"it stopped early at step {state['step']:,}, when nothing was left to learn", "train.patience"
        if not 0 < self._most <= own.get("worse", 0) or own.get("learns"):
            return None
        return f"it stopped early at step {state['step']:,}, when validations did not improve", "train.patience"

    def state_dict(self) -> dict[str, Any]:
        # A run that it has ended stays at its end, also where the last validation is another model's.
        own: dict[str, Any] = {"worse": max(self.worse, self._most) if self._ended else self.worse}
        if self._options.learns:
            then = None if self._loss_then == math.inf else [self._loss, self._loss_then, self._best_step]
            own |= {"since": [self._sum, self._steps], "then": then}
            own |= {"learns": True} if self._learns and not self._ended else {}
            own |= {"last": True} if self._last else {}
            own |= {"known": self._known} if self._known else {}
        return own

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.worse = state.get("worse", 0)
        self._sum, self._steps = state.get("since") or (0.0, 0)
        self._loss, self._loss_then, self._best_step = state.get("then") or (math.inf, math.inf, 0)
        self._last = False
        self._known = state.get("known", 0)
