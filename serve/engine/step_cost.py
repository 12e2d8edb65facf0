"""How long a forward pass takes, by its number of rows. Pure Python: ``model_runner.py`` does the measuring.

Tested in tests/serve/engine/spec_decode/test_planner.py.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass


@dataclass(frozen=True)
class StepCost:
    """Seconds of a forward pass by its number of rows, all with logits; measured for some numbers of rows."""

    rows: tuple[int, ...]
    seconds: tuple[float, ...]

    def __call__(self, n: int) -> float:
        """Seconds of a pass of ``n`` rows: interpolated, and proportional beyond the largest that was measured."""
        rows, seconds = self.rows, self.seconds
        if n >= rows[-1]:
            return seconds[-1] * n / rows[-1]
        i = max(bisect_right(rows, n), 1)
        slope = (seconds[i] - seconds[i - 1]) / (rows[i] - rows[i - 1])
        return seconds[i - 1] + slope * (n - rows[i - 1])
