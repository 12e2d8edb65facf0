"""Which settings go on after a rung: successive halving (Jamieson and Talwalkar 2016) by validation loss."""

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

Key = TypeVar("Key")


def survivors(losses: Mapping[Key, Sequence[float | None]], keep: float) -> list[Key]:
    """The settings that go on, in their order: the share ``keep`` of them, rounded up, with the lowest mean losses.

    ``losses``: of each setting, one per seed, at equal tokens; None for a run that failed. A setting with a failed run
    does not go on, and neither counts the share for more than there are.
    """
    means = {key: mean(values) for key, values in losses.items()}
    whole = [key for key, value in means.items() if value < math.inf]
    best = sorted(whole, key=means.__getitem__)[: math.ceil(round(len(losses) * keep, 9))]
    return [key for key in losses if key in best]


def mean(values: Sequence[float | None]) -> float:
    """The mean; infinity where a value is missing or there is none."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known and len(known) == len(values) else math.inf


def deviation(values: Sequence[float]) -> float | None:
    """The sample standard deviation; None for fewer than two values."""
    if len(values) < 2:
        return None
    middle = sum(values) / len(values)
    return math.sqrt(sum((value - middle) ** 2 for value in values) / (len(values) - 1))
