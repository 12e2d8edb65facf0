"""``distill.teacher``: a run learns from the same weights to its end.

Tested in tests/train/objective/test_distilled_run.py.
"""

from collections.abc import Mapping
from typing import Any

from slm.cli import spelled
from slm.data.errors import UserError
from slm.train.components.component import Component
from slm.train.objective.distillation import DistillObjective


class Teacher(Component):
    """Notes what identifies the teacher's weights, and refuses to go on with others."""

    name = "teacher"

    def _digest(self) -> str:
        objective = self.run.objective
        return objective.teacher_digest if isinstance(objective, DistillObjective) else ""

    def state_dict(self) -> dict[str, Any]:
        return {"digest": self._digest()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["digest"] != self._digest():
            raise UserError(
                f"the weights of the teacher {self.run.config.distill.teacher} are not those that the run was taught "
                f"by: bring them back, or begin anew with {spelled('train', resume='never')}"
            )
