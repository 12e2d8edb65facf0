"""How far a run is by the clock: with set-up and end counted, a machine that becomes slower, and one that sleeps."""

import time

import pytest

from slm.configuration import build, load_config
from slm.data.errors import UserError
from slm.model.config import ModelConfig
from slm.train.config import RunConfig, TrainConfig
from slm.train.guards import AwakeClock
from slm.train.optim.schedule import learning_rate
from slm.train.run.run_state import RunState, check_set_up, limit_seconds

CONFIG = TrainConfig(max_steps=1_000_000, max_minutes=10, seq_len=8, micro_batch=1)
OPTIM = build(RunConfig, load_config("train", ["preset=tiny"])).optim


class FakeClock:
    """A machine's two clocks: the one that stops while it sleeps, and the one that does not."""

    def __init__(self) -> None:
        self.awake = self.asleep = 0.0

    def __call__(self, which: int) -> float:
        total = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
        return self.awake + (self.asleep if which == total else 0.0)


def drive(state: RunState, clock: FakeClock, step_seconds) -> list[float]:
    """Take steps until the run is over; the learning rate of each."""
    rates = []
    while (done := state.fraction_done(state.elapsed)) < 1:
        rates.append(learning_rate(OPTIM, state.step, done))
        clock.awake += step_seconds(state.step)
        state.step += 1
        if state.step == 150:
            clock.asleep += 5000.0
            assert state.clock.slept() == 5000.0 or getattr(time, "CLOCK_BOOTTIME", -1) == time.CLOCK_MONOTONIC
    return rates


def start(setup: float) -> tuple[RunState, FakeClock]:
    state, clock = RunState(CONFIG), FakeClock()
    state.clock = AwakeClock(clock)
    state.start_clock(setup)
    state.closing_seconds = 12.0
    return state, clock


@pytest.mark.parametrize("slower", [1.0, 4.0])
def test_the_time_is_kept_and_the_decay_finished_also_where_the_machine_becomes_slower(slower):
    state, clock = start(setup=40.0)
    rates = drive(state, clock, lambda step: 1.0 if step < 200 else slower)
    assert clock.awake + 40 + 12 == pytest.approx(600, abs=slower)
    assert rates[0] == rates[100] == OPTIM.lr
    assert rates[-1] < 0.02 * OPTIM.lr
    assert len(rates) == pytest.approx(200 + 348 / slower, abs=1)


def test_a_second_start_adds_its_set_up_and_no_pause():
    state, clock = start(setup=40.0)
    clock.awake += 200
    saved = state.state_dict()
    resumed, later = RunState(CONFIG), FakeClock()
    resumed.clock = AwakeClock(later)
    resumed.resume(saved)
    resumed.start_clock(30.0)
    assert resumed.elapsed == 200
    assert resumed.limit_seconds == 600 - 40 - 30 - 12
    assert resumed.seconds_left(tokens_per_s=1e-9) == pytest.approx(600 - 40 - 30 - 200)
    drive(resumed, later, lambda _: 1.0)
    assert later.awake == pytest.approx(600 - 40 - 30 - 12 - 200, abs=1)


def test_the_minutes_are_those_of_the_whole_process():
    assert limit_seconds(CONFIG, 30, 30) == 540
    check_set_up(CONFIG, 599)
    with pytest.raises(UserError, match="set-up took 10:01, and the run may take 10:00: give more time"):
        check_set_up(CONFIG, 601)
    assert limit_seconds(TrainConfig(max_steps=1, seq_len=1, micro_batch=1), 1, 1) == float("inf")


def test_a_validation_computes_all_logits_forward_only():
    shape = ModelConfig(
        vocab_size=32768, n_layers=1, d_model=256, n_heads=4, n_kv_heads=2, head_dim=64, ffn_dim=512, seq_len=512
    )
    whole, sampled = (
        TrainConfig(max_steps=1, seq_len=512, micro_batch=1, sampled_softmax=words) for words in (0, 2048)
    )
    assert whole.validation_share(shape) == pytest.approx(1 / 3)
    # Millions of weights: heads of 32,768 and of 2,048 ids, and the layer with its attention.
    assert sampled.validation_share(shape) == pytest.approx((8.4 + 0.7) / (0.5 + 0.7) / 3, rel=0.05)
