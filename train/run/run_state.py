"""How far a run is: steps, tokens, time, the last validation, and what the metrics remember."""

import math
from typing import Any

from slm.data.errors import UserError
from slm.report import duration
from slm.train.config import TrainConfig
from slm.train.guards import AwakeClock
from slm.train.run.metrics_window import MetricsWindow

STATE_FORMAT = 1
"""Version of the JSON state in a checkpoint."""
RISEN = 0.01
"""From this share above its lowest value on, a validation loss counts as risen."""
SET_UP_TOOK = "set-up took"
"""How the message of ``check_set_up`` begins."""


class RunState:
    """The part of a checkpoint's JSON state that training itself counts. The data's position is the loader's."""

    def __init__(self, config: TrainConfig) -> None:
        self._config = config
        self.step = 0
        """Optimizer steps done."""
        self.tokens = 0
        """Positions trained on: tokens, or bags of them in such a phase (``train.phases``)."""
        self.validation: dict[str, Any] = {}
        """The last validation's record; empty before the first."""
        self.best_loss = math.inf
        """The lowest validation loss so far."""
        self.window, self.clock = MetricsWindow(), AwakeClock()
        self.earlier_seconds = 0.0
        """Seconds of training before this start of the run."""
        self.setup_seconds = 0.0
        """Seconds from the process's start to its training, of all starts of the run together."""
        self.closing_seconds = 0.0
        """Seconds that the last validation and checkpoint will take, as far as is known."""
        self._started = self.clock()

    def start_clock(self, setup_seconds: float = 0.0) -> None:
        """Training begins now: what was done before this call, in ``setup_seconds``, does not count as its time."""
        self.setup_seconds += setup_seconds
        self._started = self.clock()

    @property
    def elapsed(self) -> float:
        """Seconds of training, earlier starts of this run included."""
        return self.earlier_seconds + self.clock() - self._started

    def validated(self, record: dict[str, Any]) -> bool:
        """Remember the record of a validation. Returns whether its loss is the lowest so far."""
        self.validation = record
        loss = comparable_loss(record)
        improved = loss < self.best_loss
        self.best_loss = min(self.best_loss, loss)
        return improved

    @property
    def risen(self) -> bool:
        """Whether the last validation loss lies clearly above the lowest one."""
        return bool(self.validation) and comparable_loss(self.validation) > self.best_loss * (1 + RISEN)

    def fraction_done(self, elapsed: float) -> float:
        """The share of the run that is done after ``elapsed`` seconds: by steps or, where that is more, by time."""
        by_steps = self.step / self._config.max_steps
        return max(by_steps, elapsed / self.limit_seconds)

    @property
    def limit_seconds(self) -> float:
        """Seconds of training after which time ends the run; infinite where nothing limits it."""
        return limit_seconds(self._config, self.setup_seconds, self.closing_seconds)

    def seconds_left(self, tokens_per_s: float) -> float:
        """How long the rest of the run takes at this speed."""
        per_step: float = self._config.tokens_per_step
        if self._config.pack_tokens and self.step:  # steps are of several lengths
            per_step = self.tokens / self.step
        left = (self._config.max_steps - self.step) * per_step / tokens_per_s
        return max(0.0, min(left, self.limit_seconds - self.elapsed)) + self.closing_seconds

    def state_dict(self) -> dict[str, Any]:
        return {
            "format": STATE_FORMAT,
            "step": self.step,
            "tokens": self.tokens,
            "elapsed_s": self.elapsed,
            "setup_s": self.setup_seconds,
            "closing_s": self.closing_seconds,
            "validation": self.validation,
            "best_loss": self.best_loss if self.best_loss < math.inf else None,
            "window": self.window.state_dict(),
        }

    def resume(self, state: dict[str, Any]) -> None:
        """Continue where a checkpoint's ``state`` was saved."""
        self.rewind(state)
        self.earlier_seconds = state["elapsed_s"]
        self.setup_seconds = state.get("setup_s", 0.0)
        self.closing_seconds = state.get("closing_s", 0.0)

    def rewind(self, state: dict[str, Any]) -> None:
        """Go back to a checkpoint's step. Time and the data's position stay as they are."""
        self.step, self.tokens = state["step"], state["tokens"]
        self.validation = state["validation"]
        self.best_loss = math.inf if state["best_loss"] is None else state["best_loss"]
        self.window = MetricsWindow(state.get("window"))


def comparable_loss(record: dict[str, Any]) -> float:
    """The validation loss on the sequences that every validation scores; the last one may score more."""
    loss: float = record.get("val_usual_loss", record["val_loss"])
    return loss


def limit_seconds(config: TrainConfig, setup: float, closing: float) -> float:
    """Seconds of training that ``max_minutes`` allows, given the set-up before it and what its end takes."""
    if not config.max_minutes:
        return math.inf
    return max(1e-3, 60 * config.max_minutes - setup - closing)


def check_set_up(config: TrainConfig, setup: float) -> None:
    """UserError where the set-up of a run has taken all the time that it may have."""
    if config.max_minutes and setup >= 60 * config.max_minutes:
        raise UserError(
            f"{SET_UP_TOOK} {duration(setup)}, and the run may take {duration(60 * config.max_minutes)}: give more "
            "time (budget= or train.max_minutes=); what set-up made once, such as kernels, is there the next time"
        )
