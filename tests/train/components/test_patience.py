"""Validations that do not improve end a run, and it stays at its end."""

import json
from types import SimpleNamespace

from slm.train.components.patience import Patience, PatienceOptions
from slm.train.config import TrainConfig
from slm.train.run.run_state import RunState


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


class Log(list):
    """What a run prints, and the names of its events."""

    print = list.append

    def event(self, name, step, text, **facts):
        self.extend([name, text])


def learning(most: int = 2, **options) -> Patience:
    mine = Patience(most, PatienceOptions(**({"learns": True} | options)))
    preference = SimpleNamespace(loss_unit="nats per token")
    state = RunState(TrainConfig(max_steps=100, seq_len=8, micro_batch=1))
    mine.run = SimpleNamespace(state=state, log=Log(), config=SimpleNamespace(preference=preference))
    return mine


def go(mine: Patience, *pairs: tuple[float, float]) -> Patience:
    """Steps with a training loss, each with a validation behind it."""
    state = mine.run.state
    for loss, held_out in pairs:
        state.step += 1
        assert mine.jumped(loss) is None
        mine.validated(improved=state.validated({"step": state.step, "val_loss": held_out}))
    return mine


LEARNS = ((2.0, 2.0), (1.0, 1.5), (0.7, 1.6), (0.3, 1.9), (0.1, 2.2))
"""Training conversations are learned while held-out ones get worse."""


def test_held_out_conversations_that_get_worse_end_no_run_that_still_learns():
    mine = go(learning(), *LEARNS)
    assert mine.ends() is None
    (line,) = mine.run.log
    assert line == (
        "step 4: the last 2 validations did not improve on 1.5000 nats per token, but in training the loss fell from "
        "1.000 to 0.300 since: the run goes on"
    )
    plain = go(learning(learns=False), *LEARNS)
    assert "did not improve on 1.5000" in plain.ends()
    stays = go(learning(), (2.0, 2.0), (1.0, 1.5), (0.99, 1.6), (0.98, 1.6))
    assert "did not improve on 1.5000" in stays.ends()
    assert not stays.at_end()
    assert stays.run.state.best_loss == 1.5


def test_the_last_checkpoint_is_taken_where_held_out_conversations_do_not_follow_from_those_in_training():
    mine = go(learning(), *LEARNS)
    assert not mine.at_end()
    assert mine.run.state.best_loss == 2.2
    assert mine.state_dict()["last"]
    assert mine.ended_early({"step": 5, "patience": mine.state_dict()}) is None
    assert mine.run.log[1] == "last_taken"
    assert "their lowest loss, 1.5000 nats per token, at step 2; those in training are at 0.100 now" in mine.run.log[2]
    near = go(learning(), (2.0, 2.0), (1.3, 1.5), (1.1, 1.51))  # the usual gap: the lowest loss decides
    assert not near.at_end()
    assert near.run.state.best_loss == 1.5
    assert "last" not in near.state_dict()


def test_a_run_ends_where_nothing_is_left_to_learn():
    once = go(learning(), (2.0, 2.0), (0.1, 9e-4), (0.1, 2e-3), (0.1, 8e-4))
    assert once.ends() is None
    twice = go(once, (0.1, 7e-4))
    assert twice.ends() == "the held-out conversations are at 0.0007 nats per token: nothing is left to learn"
    assert not twice.at_end()
    assert "last" not in twice.state_dict()
    reason, option = twice.ended_early({"step": 5, "patience": twice.state_dict()})
    assert (reason, option) == ("it stopped early at step 5, when nothing was left to learn", "train.patience")
    again = learning()
    again.load_state_dict(json.loads(json.dumps(once.state_dict())))
    assert again.state_dict() == once.state_dict()
    assert go(learning(learns=False), (0.1, 7e-4), (0.1, 6e-4), (0.1, 5e-4)).ends() is None


def test_its_state_goes_on():
    whole, before = go(learning(), *LEARNS), go(learning(), *LEARNS[:3])
    before.jumped(0.5)
    after = learning()
    after.run.state.resume(json.loads(json.dumps(before.run.state.state_dict())))
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    assert after.state_dict() == before.state_dict()
    after.jumped(0.1)
    after.validated(improved=after.run.state.validated({"step": 4, "val_loss": 1.9}))
    go(after, LEARNS[4])
    assert after.state_dict() == whole.state_dict()
