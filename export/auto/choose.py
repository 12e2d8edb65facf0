"""One option per item, so that the total of one quantity is least while the total of another stays within a budget.

The multiple-choice knapsack, by a dynamic program over the totals that no other total beats in both quantities. Where
those become too many, one of neighbouring totals stays: costs are never rounded, so the budget holds exactly.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

_MOST_TOTALS = 2_048


def least(value: Sequence[np.ndarray], cost: Sequence[np.ndarray], budget: float) -> list[int] | None:
    """The option of each item with the least total ``value`` at a total ``cost`` of at most ``budget``.

    ``value[i][k]``, ``cost[i][k]``: of item i's option k, f64. None where even the cheapest options cost more.
    """
    totals = _Totals()
    cheapest_after = np.cumsum([0.0] + [float(c.min()) for c in reversed(cost)])[::-1][1:]
    for v, c, rest in zip(value, cost, cheapest_after, strict=True):
        totals.add(v, c, budget - float(rest))
        if not len(totals.cost):
            return None
    return totals.choice(len(totals.cost) - 1)


def frontier(value: Sequence[np.ndarray], cost: Sequence[np.ndarray]) -> list[list[int]]:
    """Choices from the cheapest to the one of least value, along the lower convex hull of all choices' totals: each is
    the best at what it costs (the Lagrangian's solution at some multiplier)."""
    steps = []
    chosen = []
    for item, (v, c) in enumerate(zip(value, cost, strict=True)):
        hull = _hull(v, c)
        chosen.append(hull[0])
        for before, after in pairwise(hull):
            steps.append((float(v[before] - v[after]) / max(float(c[after] - c[before]), 1e-300), item, after))
    found = [list(chosen)]
    # Within an item the rates fall along the hull, so that its steps stay in order.
    for _, item, after in sorted(steps, key=lambda step: -step[0]):
        chosen[item] = after
        found.append(list(chosen))
    return found


class _Totals:
    """Totals of the items so far that no other total beats, by rising cost and falling value, and how they came."""

    def __init__(self) -> None:
        self.cost = self.value = np.zeros(1)
        self.steps: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, value: np.ndarray, cost: np.ndarray, budget: float) -> None:
        all_cost, all_value = (self.cost[:, None] + cost).ravel(), (self.value[:, None] + value).ravel()
        order = np.lexsort((all_value, all_cost))
        order = order[all_cost[order] <= budget * (1 + 1e-12)]
        if len(order):
            before = np.minimum.accumulate(np.concatenate([[np.inf], all_value[order][:-1]]))
            order = order[all_value[order] < before]
        if len(order) > _MOST_TOTALS:
            low, high = all_cost[order[0]], all_cost[order[-1]]
            place = ((all_cost[order] - low) / (high - low) * (_MOST_TOTALS - 1)).astype(int)
            order = order[np.flatnonzero(np.diff(place, append=-1))]  # the last of each place has its least value
        self.cost, self.value = all_cost[order], all_value[order]
        self.steps.append((order // len(cost), order % len(cost)))

    def choice(self, at: int) -> list[int]:
        """The options that lead to the total number ``at``."""
        chosen = []
        for before, option in reversed(self.steps):
            chosen.append(int(option[at]))
            at = int(before[at])
        return chosen[::-1]


def _hull(value: np.ndarray, cost: np.ndarray) -> list[int]:
    """Options from the cheapest to the one of least value, those above the lower convex hull left out."""
    hull: list[int] = []
    for option in np.lexsort((value, cost)).tolist():
        if hull and value[option] >= value[hull[-1]]:
            continue
        while len(hull) > 1:
            a, b = hull[-2], hull[-1]
            if (value[a] - value[b]) * (cost[option] - cost[a]) > (value[a] - value[option]) * (cost[b] - cost[a]):
                break
            hull.pop()
        hull.append(option)
    return hull
