"""Marks travel in a block's numbers and leave its ids as they were."""

import numpy as np

from slm.data.stream import marks


def test_ids_come_back_and_only_the_chosen_ones_are_scored():
    ids = np.array([5, 0, 150_000, 7])
    block = marks.mark(ids, [False, True, True, False])
    assert block.dtype == np.int32
    assert (block >= 0).all()
    assert marks.ids_of(block).tolist() == ids.tolist()
    assert marks.is_scored(block).tolist() == [False, True, True, False]


def test_every_position_knows_where_its_conversation_begins():
    one, two = marks.mark(np.arange(3), np.ones(3)), marks.mark(np.arange(4), np.zeros(4))
    blocks = np.stack([np.concatenate([one, two]), np.concatenate([two, one])])
    assert marks.conversation_starts(blocks).tolist() == [[0, 0, 0, 3, 3, 3, 3], [0, 0, 0, 0, 4, 4, 4]]


def test_plain_text_has_no_marks():
    block = np.arange(12, dtype=np.int32).reshape(2, 6)
    assert marks.conversation_starts(block) is None
    assert marks.is_scored(block).all()
    assert marks.ids_of(block).tolist() == block.tolist()
