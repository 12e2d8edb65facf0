"""``train.patience``: a run ends when its validations do not improve any more.

Tested in tests/train/components/test_patience.py, tests/train/test_reliability.py.
"""

from collections.abc import Mapping
from typing import Any

from slm.train.components.component import Component


class Patience(Component):
    """``most``: this many validations in a row without a lower loss end the run; 0: never."""

    name = "patience"

    def __init__(self, most: int) -> None:
        self._most = most
        self._ended = False
        self.worse = 0
        """Validations in a row that came after the lowest loss."""

    def validated(self, *, improved: bool) -> None:
        self.worse = 0 if improved else self.worse + 1

    def forget_losses(self) -> None:
        self.worse = 0

    @property
    def _over(self) -> bool:
        return 0 < self._most <= self.worse

    def ends(self) -> str | None:
        if not self._over:
            return None
        unit = self.run.config.preference.loss_unit
        return f"the last {self._most} validations did not improve on {self.run.state.best_loss:.4f} {unit}"

    def at_end(self) -> bool:
        self._ended = self._over
        return False

    def ended_early(self, state: Mapping[str, Any]) -> tuple[str, str] | None:
        if not 0 < self._most <= (state.get(self.name) or {}).get("worse", 0):
            return None
        return f"it stopped early at step {state['step']:,}, when validations did not improve", "train.patience"

    def state_dict(self) -> dict[str, Any]:
        # A run that it has ended stays at its end, also where the last validation is another model's.
        return {"worse": max(self.worse, self._most) if self._ended else self.worse}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.worse = state.get("worse", 0)
