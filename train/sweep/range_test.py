"""The learning-rate range test (Smith 2017): what the loss says while the rate grows exponentially."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

SMOOTHING = 0.9
"""What the mean of losses keeps of itself at each step."""
DIVERGED = 0.1
"""A loss has diverged when it rises above its lowest value by this share of its fall so far."""


@dataclass(frozen=True)
class RangeResult:
    """Learning rates (``optim.lr``) of one range test; None where the test did not come to them."""

    steepest: float | None
    """Where the smoothed loss fell fastest per factor of the rate."""
    lowest: float | None
    """Where the smoothed loss was lowest."""
    diverging: float | None
    """From where on the loss was above its lowest value by a tenth of its fall, or not finite."""
    loss: float | None
    """The lowest smoothed loss, nats per token."""


def read_range(rates: Sequence[float], losses: Sequence[float], *, broke_off: bool) -> RangeResult:
    """The result of a test with ``losses`` (nats per token, one per step) at rising ``rates``.

    ``broke_off``: the step after the last had a loss or gradient that was not finite.
    """
    smooth = smoothed(losses)
    if len(smooth) < 3:
        return RangeResult(None, None, rates[-1] if broke_off and rates else None, None)
    bottom = min(range(len(smooth)), key=smooth.__getitem__)
    # The first losses are means of a few steps: their mean is not smooth yet.
    begin = min(len(smooth) // 10 + 1, max(bottom - 1, 1))
    falls = {
        index: (smooth[index - 1] - smooth[index]) / math.log(rates[index] / rates[index - 1])
        for index in range(begin, bottom + 1)
        if rates[index] > rates[index - 1] > 0
    }
    steepest = rates[max(falls, key=falls.__getitem__)] if falls and max(falls.values()) > 0 else None
    limit = smooth[bottom] + DIVERGED * (smooth[0] - smooth[bottom])
    above = next((rates[index] for index in range(bottom, len(smooth)) if smooth[index] > limit), None)
    diverging = above if above is not None else (rates[-1] if broke_off else None)
    return RangeResult(steepest, rates[bottom], diverging, smooth[bottom])


def smoothed(losses: Sequence[float]) -> list[float]:
    """The running mean that forgets, without its bias towards zero at the beginning."""
    found, value = [], 0.0
    for count, loss in enumerate(losses, start=1):
        value = SMOOTHING * value + (1 - SMOOTHING) * loss
        found.append(value / (1 - SMOOTHING**count))
    return found


def rates_to_try(result: RangeResult) -> list[float]:
    """Three rates for a sweep: around the steepest one, and below the diverging one."""
    if result.steepest is None:
        return []
    rates = [result.steepest * factor for factor in (0.5, 1.0, 2.0)]
    return [float(f"{rate:.2g}") for rate in rates if result.diverging is None or rate < result.diverging]
