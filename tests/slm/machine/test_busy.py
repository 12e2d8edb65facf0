"""A measurement next to other programs is marked, one by itself is not."""

import pytest

from slm.machine.busy import Others, mark


@pytest.mark.parametrize(("free", "count", "share"), [(2.0, 2, 0.0), (1.0, 2, 0.5), (2.1, 2, 0.0), (None, 2, None)])
def test_the_share_of_others(monkeypatch, free, count, share):
    others = Others()
    monkeypatch.setattr(others, "_count", count)
    monkeypatch.setattr(others._cores, "read", lambda: free)
    assert others.share() == share


def test_a_busy_machine_is_marked_with_the_share():
    assert mark(None) == mark(0.05) == ""
    assert mark(0.34) == " (BUSY: other programs used 34% of the cores, so speeds are too low)"
