import pytest

from slm.serve.engine.scheduler import KvSlots


def test_free_slots_in_order_of_use():
    slots = KvSlots(4)
    assert slots.free() == [0, 1, 2, 3]
    for slot, tokens in ((2, (1, 2)), (0, (3,)), (1, ())):
        slots.take(slot, "a")
        slots.release(slot, "a", tokens)
    assert slots.free() == [1, 3, 2, 0]
    assert slots.cached(2) == (1, 2)
    slots.drop_cached(2)
    assert slots.free() == [1, 2, 3, 0]


def test_a_slot_has_one_holder():
    """A real check, not an assert: two sequences in one slot would mix their cells."""
    slots = KvSlots(2)
    slots.take(1, "a")
    with pytest.raises(RuntimeError, match="held by a"):
        slots.take(1, "b")
    with pytest.raises(RuntimeError, match="held by a"):
        slots.drop_cached(1)
    with pytest.raises(RuntimeError, match="not b's"):
        slots.release(1, "b")
