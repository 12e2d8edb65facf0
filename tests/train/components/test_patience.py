"""Validations that do not improve end a run, and it stays at its end."""

from slm.train.components.patience import Patience


def test_it_counts_validations_in_a_row_without_a_lower_loss():
    mine = Patience(2)
    for improved, ends in ((True, False), (False, False), (True, False), (False, False), (False, True)):
        mine.validated(improved=improved)
        assert (mine.ended_early(mine.state_dict() | {"step": 7, "patience": mine.state_dict()}) is not None) == ends


def test_a_run_that_it_ended_stays_at_its_end_when_its_weights_are_rounded_then():
    mine = Patience(1)
    mine.validated(improved=False)
    assert not mine.at_end()
    mine.forget_losses()  # as quantization does, which is validated once more
    mine.validated(improved=True)
    assert mine.state_dict() == {"worse": 1}
    other = Patience(1)
    other.validated(improved=False)
    other.forget_losses()  # the model in training is another one: the run goes on
    assert other.state_dict() == {"worse": 0}
