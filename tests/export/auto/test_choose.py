import itertools

import numpy as np
import pytest

from slm.export.auto.choose import frontier, least


def items(seed: int, n_items: int, n_options: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Like tensors: more bytes, less loss, on scales that differ by item; one option is dominated."""
    rng = np.random.default_rng(seed)
    cost = [np.sort(rng.random(n_options)) * 10 ** rng.uniform(0, 1.5) for _ in range(n_items)]
    value = [np.exp(-3 * c / c.max()) * 10 ** rng.uniform(-2, 1) * rng.uniform(0.8, 1.2, n_options) for c in cost]
    return value, cost


def brute_force(value, cost, budget) -> float:
    totals = [
        sum(v[k] for v, k in zip(value, each, strict=True))
        for each in itertools.product(*[range(len(v)) for v in value])
        if sum(c[k] for c, k in zip(cost, each, strict=True)) <= budget
    ]
    return min(totals)


@pytest.mark.parametrize("seed", range(12))
def test_the_best_of_all_choices_and_within_the_budget(seed):
    value, cost = items(seed, n_items=6, n_options=4)
    low, high = (sum(float(f(c)) for c in cost) for f in (np.min, np.max))
    for part in (0.1, 0.4, 0.8):
        budget = low + part * (high - low)
        chosen = least(value, cost, budget)
        assert sum(c[k] for c, k in zip(cost, chosen, strict=True)) <= budget
        total = sum(v[k] for v, k in zip(value, chosen, strict=True))
        assert total <= (1 + 1e-9) * brute_force(value, cost, budget)


def test_a_budget_that_nothing_meets_and_one_that_meets_everything():
    value, cost = items(0, n_items=5, n_options=3)
    assert least(value, cost, 0.0) is None
    assert least(value, cost, 1e9) == [int(np.argmin(v)) for v in value]


def test_the_frontier_is_convex_and_leaves_out_what_never_pays():
    value, cost = [np.array([4.0, 3.9, 1.0, 2.0])], [np.array([1.0, 2.0, 3.0, 4.0])]
    assert frontier(value, cost) == [[0], [2]]
    value, cost = items(1, n_items=20, n_options=6)
    totals = [[sum(t[k] for t, k in zip(each, chosen, strict=True)) for each in (cost, value)]
              for chosen in frontier(value, cost)]  # fmt: skip
    rates = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.pairwise(totals)]
    assert len(rates) > 20
    assert all(later >= earlier - 1e-9 for earlier, later in itertools.pairwise(rates))


def test_many_items_are_quick():
    value, cost = items(2, n_items=100, n_options=8)
    budget = 0.5 * sum(float(c.max()) for c in cost)
    chosen = least(value, cost, budget)
    spent = sum(c[k] for c, k in zip(cost, chosen, strict=True))
    assert 0.999 * budget < spent <= budget
    # No choice on the Lagrangian's frontier within the budget is better.
    within = [each for each in frontier(value, cost) if sum(c[k] for c, k in zip(cost, each, strict=True)) <= budget]
    best = min(sum(v[k] for v, k in zip(value, each, strict=True)) for each in within)
    assert sum(v[k] for v, k in zip(value, chosen, strict=True)) <= best
