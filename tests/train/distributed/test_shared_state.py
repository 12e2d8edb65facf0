"""Each rank's position in the text, and the common end of the text."""

import numpy as np
import pytest

from slm.data.config import DataConfig
from slm.data.errors import UserError
from slm.data.stream.loader import EndOfTextError
from slm.train.distributed.ranks import Ranks
from slm.train.distributed.shared_state import own_loader_state, synchronized_batches


def test_a_saved_position_belongs_to_its_process():
    class Third:
        rank, size = 2, 3

    state = {"loader": {"n": 0}, "other_loaders": [{"n": 1}, {"n": 2}]}
    assert own_loader_state(Third(), state, reshard=False) == {"n": 2}
    with pytest.raises(UserError, match="saved by 1 processes"):
        own_loader_state(Third(), {"loader": {}}, reshard=False)


def test_the_text_ends_on_all_before_the_same_step():
    """The other rank has three batches more, and is not left alone with its step."""

    class Pair(Ranks):
        size = 2

        def all_reduce_sum(self, values):
            return [value + other for value, other in zip(values, next(others), strict=True)]

    def first_to_end():
        yield from (np.full((1, 3), n) for n in range(5))
        raise EndOfTextError("used up")

    data = DataConfig(kind="tales", max_epochs=1)
    others = iter([[0.0], [0.0], [0.0], [0.0]])
    batches = synchronized_batches(Pair(), first_to_end(), data, grad_accum=4)
    assert [int(next(batches)[0, 0]) for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(EndOfTextError):
        next(batches)
    others = iter([[0.0], [1.0]])  # and the other way round
    batches = synchronized_batches(Pair(), (np.full((1, 3), n) for n in range(99)), data, grad_accum=4)
    assert [int(next(batches)[0, 0]) for _ in range(2)] == [0, 1]
    with pytest.raises(EndOfTextError, match="another process"):
        next(batches)
