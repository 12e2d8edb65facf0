"""Guards of a run against losses that are not finite, and a machine that slept."""

import time
from collections.abc import Callable
from typing import Any

from slm.data.errors import UserError
from slm.machine.hardware import clocks

SKIPS_IN_A_ROW = 10
"""With ``train.on_nonfinite=skip``: more consecutive skipped updates than this end the run."""
SUSPEND_SECONDS = 5.0
"""Shorter sleeps are not reported."""


class NonFiniteError(UserError):
    """The loss or the gradient of a step is not finite. Raised before the update."""


class Skips:
    """Counts skipped updates. Its state is part of a checkpoint: a resumed run decides the same.

    ``on``: whether an update is skipped where a number is not finite (``train.on_nonfinite``).
    """

    def __init__(self, *, on: bool) -> None:
        self._on = on
        self._in_a_row = 0
        self.count = 0
        """Updates skipped so far."""

    def skips(self, error: NonFiniteError) -> bool:
        """Whether the step that raised ``error`` is to be skipped; UserError after too many in a row."""
        if not self._on:
            return False
        self._in_a_row += 1
        self.count += 1
        if self._in_a_row > SKIPS_IN_A_ROW:
            raise UserError(
                f"{self._in_a_row} updates in a row were skipped, the last because {error}; "
                "the checkpoints are from before"
            ) from error
        return True

    def updated(self) -> None:
        """An update was made."""
        self._in_a_row = 0

    def state_dict(self) -> dict[str, Any]:
        return {"in_a_row": self._in_a_row, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._in_a_row, self.count = state["in_a_row"], state["count"]


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
