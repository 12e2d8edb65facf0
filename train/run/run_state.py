"""How far a run is: steps, tokens, time, the last validation, and what guards and metrics remember.

Tested in tests/train/test_main.py, tests/train/test_resume.py.
"""

import math
from typing import Any

from train.config import TrainConfig
from train.guards import AwakeClock, Guards
from train.run.metrics_window import MetricsWindow

STATE_FORMAT = 1
"""Version of the JSON state in a checkpoint."""


class RunState:
    """The part of a checkpoint's JSON state that training itself counts. The data's position is the loader's."""

    def __init__(self, config: TrainConfig) -> None:
        self._config = config
        self.step = 0
        """Optimizer steps done."""
        self.tokens = 0
        """Tokens trained on."""
        self.validation: dict[str, Any] = {}
        """The last validation's record; empty before the first."""
        self.best_loss, self.worse = math.inf, 0
        """The lowest validation loss so far, and how many validations in a row have come after it."""
        self.guards, self.window, self.clock = Guards(config), MetricsWindow(), AwakeClock()
        self.earlier_seconds = 0.0
        """Seconds of training before this start of the run."""
        self._started = self.clock()

    def start_clock(self) -> None:
        """Training begins now: what was done before this call does not count as its time."""
        self._started = self.clock()

    @property
    def elapsed(self) -> float:
        """Seconds of training, earlier starts of this run included."""
        return self.earlier_seconds + self.clock() - self._started

    def validated(self, record: dict[str, Any]) -> None:
        """Remember the record of a validation."""
        self.validation = record
        improved = record["val_loss"] < self.best_loss
        self.best_loss, self.worse = (record["val_loss"], 0) if improved else (self.best_loss, self.worse + 1)

    @property
    def out_of_patience(self) -> bool:
        """Whether the last ``train.patience`` validations were all worse than an earlier one."""
        return 0 < self._config.patience <= self.worse

    def fraction_done(self, elapsed: float) -> float:
        """The share of the run that is done after ``elapsed`` seconds: by steps or, where that is more, by time."""
        by_steps = self.step / self._config.max_steps
        by_time = elapsed / (60 * self._config.max_minutes) if self._config.max_minutes else 0.0
        return max(by_steps, by_time)

    def seconds_left(self, tokens_per_s: float) -> float:
        """How long the rest of the run takes at this speed."""
        left = (self._config.max_steps - self.step) * self._config.tokens_per_step / tokens_per_s
        if self._config.max_minutes:
            left = min(left, 60 * self._config.max_minutes - self.elapsed)
        return left

    def state_dict(self) -> dict[str, Any]:
        return {
            "format": STATE_FORMAT,
            "step": self.step,
            "tokens": self.tokens,
            "elapsed_s": self.elapsed,
            "validation": self.validation,
            "patience": {"best": self.best_loss if self.best_loss < math.inf else None, "worse": self.worse},
            "guards": self.guards.state_dict(),
            "window": self.window.state_dict(),
        }

    def resume(self, state: dict[str, Any]) -> None:
        """Continue where a checkpoint's ``state`` was saved."""
        self.rewind(state)
        self.guards.load_state_dict(state.get("guards", {}))
        self.earlier_seconds = state["elapsed_s"]

    def rewind(self, state: dict[str, Any]) -> None:
        """Go back to a checkpoint's step. Guards, time and the data's position stay as they are."""
        self.step, self.tokens = state["step"], state["tokens"]
        self.validation = state["validation"]
        patience = state.get("patience") or {}
        self.best_loss = math.inf if patience.get("best") is None else patience["best"]
        self.worse = patience.get("worse", 0)
        self.window = MetricsWindow(state.get("window"))
