"""Guards of a run against losses that are not finite, losses that jump, and a machine that slept."""

import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from slm.data.errors import UserError
from slm.machine.hardware import clocks
from slm.train.config import TrainConfig

SKIPS_IN_A_ROW = 10
"""With ``train.on_nonfinite=skip``: more consecutive skipped updates than this end the run."""
SPIKE_WINDOW = 100
"""Steps whose median loss a spike is measured against."""
SPIKE_WARMUP = 20
"""Steps before a loss can be called a spike."""
ROLLBACKS_IN_A_ROW = 10
"""More rollbacks to one checkpoint than this end the run."""
SUSPEND_SECONDS = 5.0
"""Shorter sleeps are not reported."""


class NonFiniteError(UserError):
    """The loss or the gradient of a step is not finite. Raised before the update."""


class Guards:
    """Decides on skipped updates and rollbacks. Its state is part of a checkpoint: a resumed run decides the same."""

    def __init__(self, config: TrainConfig) -> None:
        self._skip = config.on_nonfinite == "skip"
        self._factor = config.spike_factor
        self._losses: deque[float] = deque(maxlen=SPIKE_WINDOW)
        self._in_a_row = 0
        self._rollbacks_here = 0
        self.skipped = 0
        """Updates skipped so far because a number was not finite."""
        self.rollbacks: list[dict[str, Any]] = []
        """Every rollback so far: from which step to which, the loss, the median, the tokens passed over."""

    def skips(self, error: NonFiniteError) -> bool:
        """Whether the step that raised ``error`` is to be skipped; UserError after too many in a row."""
        if not self._skip:
            return False
        self._in_a_row += 1
        self.skipped += 1
        if self._in_a_row > SKIPS_IN_A_ROW:
            raise UserError(
                f"{self._in_a_row} updates in a row were skipped, the last because {error}; "
                "the checkpoints are from before"
            ) from error
        return True

    def spikes(self, loss: float) -> float | None:
        """The median of the last losses where ``loss`` is more than ``spike_factor`` times that; else None."""
        self._in_a_row = 0
        if self._factor is None:
            return None
        if len(self._losses) >= SPIKE_WARMUP and loss > self._factor * (median := statistics.median(self._losses)):
            return median
        self._losses.append(loss)
        return None

    def rolled_back(self, saved: dict[str, Any], record: dict[str, Any]) -> None:
        """The run went back to a checkpoint whose guards' state is ``saved``; UserError after too many in a row."""
        here = self._rollbacks_here + 1
        if here > ROLLBACKS_IN_A_ROW:
            raise UserError(
                f"the loss jumped {here} times after step {record['to']}, each time with other data "
                f"(to {record['loss']:.4f}, {record['times']:.1f} times the median): lower optim.lr, raise "
                "train.spike_factor, or resume from an earlier checkpoint (resume=DIR)"
            )
        skipped, rollbacks = self.skipped, [*self.rollbacks, record]
        self.load_state_dict(saved)
        self._rollbacks_here, self.skipped, self.rollbacks = here, skipped, rollbacks

    def forget_losses(self) -> None:
        """Earlier losses are those of another model: a jump is measured against later ones."""
        self._losses.clear()

    def saved(self) -> None:
        """A checkpoint was begun: the next rollback goes to that one."""
        self._rollbacks_here = 0

    def state_dict(self) -> dict[str, Any]:
        return {
            "losses": list(self._losses),
            "in_a_row": self._in_a_row,
            "skipped": self.skipped,
            "rollbacks": list(self.rollbacks),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._losses = deque(state.get("losses", ()), maxlen=SPIKE_WINDOW)
        self._in_a_row = state.get("in_a_row", 0)
        self.skipped = state.get("skipped", 0)
        self.rollbacks = list(state.get("rollbacks", ()))


class AwakeClock:
    """Seconds for which the machine was awake, and how long it slept."""

    def __init__(self, read: Callable[[int], float] = time.clock_gettime) -> None:
        self._read = read
        self._awake, self._total = clocks()
        self._asleep = read(self._total) - read(self._awake)

    def __call__(self) -> float:
        return self._read(self._awake)

    def slept(self) -> float:
        """Seconds of sleep since the last call that returned some; 0 for less than ``SUSPEND_SECONDS``."""
        asleep = self._read(self._total) - self._read(self._awake)
        gap = asleep - self._asleep
        if gap < SUSPEND_SECONDS:
            return 0.0
        self._asleep = asleep
        return gap
