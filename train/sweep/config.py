"""The options of ``make sweep``; configs/sweep.yaml holds the same defaults.

Tested in tests/train/sweep/test_sweep.py.
"""

from dataclasses import dataclass, field

from slm.data.errors import UserError
from slm.train.config import RunConfig


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """Which runs are stopped early, how long they train, and the learning-rate range test."""

    rungs: list[float] = field(default_factory=lambda: [0.25, 0.5])
    """Shares of a run after which the worse settings stop; empty: every run goes to its end."""
    keep: float = 0.5
    """The share of the settings that goes on after a rung, rounded up."""
    tokens: float | None = None
    """Training tokens of every run, whatever its batch: sets ``train.max_steps``."""
    range_test: bool = False
    """Instead of training every point: one run in which the learning rate grows exponentially."""
    range_steps: int = 100
    """Optimizer steps of the range test."""
    range_factor: float = 30.0
    """The range test goes from the learning rates divided by this to the learning rates times this."""

    def __post_init__(self) -> None:
        if any(not 0 < share < 1 for share in self.rungs) or sorted(set(self.rungs)) != self.rungs:
            raise UserError(f"sweep.rungs must be rising numbers between 0 and 1, as [0.25,0.5], not {self.rungs}")
        if not 0 < self.keep <= 1:
            raise UserError(f"sweep.keep must be above 0 and at most 1, as 0.5, not {self.keep}")
        if self.tokens is not None and self.tokens < 1:
            raise UserError(f"sweep.tokens must be a number of tokens, as 1e6, not {self.tokens}")
        if self.range_steps < 20:
            raise UserError(f"sweep.range_steps must be at least 20, not {self.range_steps}")
        if self.range_factor <= 1:
            raise UserError(f"sweep.range_factor must be above 1, as 30, not {self.range_factor}")


@dataclass(frozen=True, kw_only=True)
class SweepConfig(RunConfig):
    """The runs' options (the first value of each that is swept), and those of the sweep."""

    sweep: SweepOptions = field(default_factory=SweepOptions)
