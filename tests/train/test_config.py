"""Options of a training run are checked where they are made."""

import pytest

from data.errors import UserError
from train.config import TrainConfig


def test_a_step_is_divided_evenly_or_not_at_all():
    config = TrainConfig(max_steps=1, seq_len=8, micro_batch=12, grad_accum=6)
    config.check_processes(3)
    with pytest.raises(UserError, match=r"use train\.micro_batch=6 train\.grad_accum=12 \(the same batch\)"):
        config.check_processes(4)
    with pytest.raises(UserError, match=r"use train\.grad_accum=8"):
        TrainConfig(max_steps=1, seq_len=8, micro_batch=1, grad_accum=6).check_processes(4)
