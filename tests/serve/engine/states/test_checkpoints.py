"""Which states are kept. What they are used for: tests/serve/engine/test_prefix_cache.py."""

from slm.serve.engine.states import checkpoints
from slm.serve.engine.states.checkpoints import Checkpoints


def test_the_oldest_states_make_room(monkeypatch):
    monkeypatch.setattr(checkpoints, "MOST_BYTES", 100)
    kept = Checkpoints()
    kept.keep(0, 10, b"a" * 60)
    kept.keep(1, 20, b"b" * 30)
    kept.keep(0, 10, b"c" * 60)  # in place of the first
    assert (kept.get(0, 10), kept.get(1, 20)) == (b"c" * 60, b"b" * 30)
    kept.keep(1, 30, b"d" * 30)
    assert kept.get(1, 20) is None
    assert kept.positions([0, 1, 2]) == {0: (10,), 1: (30,), 2: ()}
    kept.keep(2, 5, b"e" * 101)
    assert kept.positions([0, 1, 2]) == {0: (), 1: (), 2: ()}


def test_what_a_slot_holds_no_more_is_forgotten():
    kept = Checkpoints()
    for n in (10, 20, 30):
        kept.keep(0, n, b"x")
    kept.keep(1, 30, b"x")
    kept.drop(0, after=20)
    assert kept.positions([0, 1]) == {0: (10, 20), 1: (30,)}
    kept.drop(0)
    kept.clear()
    assert kept.positions([0, 1]) == {0: (), 1: ()}
