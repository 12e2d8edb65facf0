"""``train.spike_factor``: a loss that jumps sends the run back to its last checkpoint, and on with other data."""

import statistics
from collections import deque
from collections.abc import Mapping
from typing import Any

from slm.data.errors import UserError
from slm.train.components.component import Component

WINDOW = 100
"""A spike is measured against the median loss of this many steps."""
WARMUP = 20
"""Steps before a loss can be called a spike."""
ROLLBACKS_IN_A_ROW = 10
"""More rollbacks to one checkpoint than this end the run."""


class SpikeGuard(Component):
    """``factor``: a loss above this many times the median of the last steps is a spike. A resumed run decides alike."""

    name = "spikes"

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._losses: deque[float] = deque(maxlen=WINDOW)
        self._here: tuple[int, int] = (0, 0)
        """The step that the last rollbacks went to, and how many these were."""
        self.rollbacks: list[dict[str, Any]] = []
        """Every rollback so far: from which step to which, the loss, the median, the tokens passed over."""

    def jumped(self, loss: float) -> float | None:
        if len(self._losses) >= WARMUP and loss > self._factor * (median := statistics.median(self._losses)):
            return median
        self._losses.append(loss)
        return None

    def rolled_back(self, jump: dict[str, Any], state: Mapping[str, Any]) -> None:
        step, count = self._here
        here = count + 1 if step == jump["to"] else 1
        if here > ROLLBACKS_IN_A_ROW:
            raise UserError(
                f"the loss jumped {here} times after step {jump['to']}, each time with other data "
                f"(to {jump['loss']:.4f}, {jump['times']:.1f} times the median): lower optim.lr, raise "
                "train.spike_factor, or resume from an earlier checkpoint (resume=DIR)"
            )
        rollbacks = [*self.rollbacks, jump]
        self.load_state_dict(state)
        self._here, self.rollbacks = (jump["to"], here), rollbacks

    def record(self) -> dict[str, Any]:
        return {"rollbacks": len(self.rollbacks)} if self.rollbacks else {}

    def forget_losses(self) -> None:
        self._losses.clear()

    def state_dict(self) -> dict[str, Any]:
        return {"losses": list(self._losses), "rollbacks": list(self.rollbacks)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._losses = deque(state.get("losses", ()), maxlen=WINDOW)
        self.rollbacks = list(state.get("rollbacks", ()))
