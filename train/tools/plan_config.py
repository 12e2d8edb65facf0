"""The options of ``make plan``.

Tested in tests/train/tools/test_plan.py, tests/test_configs.py.
"""

from dataclasses import dataclass, field

from slm.data.errors import UserError
from slm.train.config import RunConfig


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Prices, and what is written."""

    price_per_hour: float = 0.10
    """What this machine costs in an hour, in any currency. About what two cores of a cloud machine cost, in USD."""
    api_price: float = 0.60
    """What an API takes for a million tokens that it writes, in the same currency; that of a small hosted model."""
    times: list[str] = field(default_factory=list)
    """With a budget: more lengths of time; the JSON line lists the best size for each (``curve``)."""
    plot: str = "runs/plan.png"
    """With a budget: the picture of the sizes and their predicted losses; empty: none is drawn."""
    machine: str | None = None
    """The machine to plan for: cores and processor (16xzen4), or cores and GFLOP/s a core (16x120); None: this one."""
    add: list[str] = field(default_factory=list)
    """Finished runs that are added to the records of the loss law on this machine, before anything else."""

    def __post_init__(self) -> None:
        for name in ("price_per_hour", "api_price"):
            if getattr(self, name) < 0:
                raise UserError(f"plan.{name} must not be negative, not {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class PlanConfig(RunConfig):
    """A run, and the speed to expect of it."""

    tokens_per_s: float | None = None
    plan: PlanOptions = field(default_factory=PlanOptions)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tokens_per_s is not None and self.tokens_per_s <= 0:
            raise UserError(f"tokens_per_s must be a positive number, not {self.tokens_per_s}")
