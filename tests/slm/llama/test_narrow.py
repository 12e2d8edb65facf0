import numpy as np
import pytest

from slm.llama import narrow


@pytest.fixture(params=[300, 5000, 50257])
def row(request):
    return (np.random.default_rng(request.param).standard_normal(request.param) * 3).astype(np.float32)


@pytest.mark.parametrize("k", [1, 40, 256, 299])
def test_top_holds_the_highest_and_few_more(row, k):
    ids = narrow.top(row, k)
    assert set(np.argsort(-row, kind="stable")[:k]) <= set(ids)
    assert len(ids) <= 2 * k + 8
    assert (np.diff(ids) > 0).all()


def test_top_with_ties_and_with_nothing_to_leave_out():
    row = np.zeros(4096, np.float32)
    row[[5, 3999]] = 1
    assert {5, 3999} <= set(narrow.top(row, 3))
    assert narrow.top(row, 4096).tolist() == list(range(4096))
    assert narrow.top(row, 2).tolist() == [5, 3999]


def test_the_end_of_the_vocabulary_counts():
    """What is left over by the columns must not get lost."""
    row = np.zeros(50257, np.float32)
    row[-1] = 9
    assert 50256 in narrow.top(row, 1)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_nucleus_is_the_fewest_that_reach_p(p):
    row = (np.random.default_rng(1).standard_normal(20000) * 4).astype(np.float32)
    probabilities = np.exp(row.astype(np.float64) - row.max())
    probabilities /= probabilities.sum()
    order = np.argsort(-row, kind="stable")
    n = int(np.searchsorted(probabilities[order].cumsum(), p)) + 1
    assert narrow.nucleus(row, float(row.max()), p, most=8192).tolist() == order[:n].tolist()


def test_a_nucleus_that_is_too_large_is_told():
    assert narrow.nucleus(np.zeros(20000, np.float32), 0.0, 0.9) is None


def test_groups_hold_their_members_parts(row):
    parts = np.exp(narrow.groups(row, float(row.max()), 0.7).astype(np.float64))
    expected = np.exp((row.astype(np.float64) - row.max()) / 0.7)
    seen = np.zeros(len(row), int)
    for group, part in enumerate(parts):
        ids = narrow.members(group, len(row))
        seen[ids] += 1
        assert part == pytest.approx(expected[ids].sum(), rel=1e-4, abs=1e-30)
    assert (seen == 1).all()
