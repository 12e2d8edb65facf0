"""What tune chooses for data that people have, without a model."""

import itertools
import random
from dataclasses import replace

import pytest

from slm.train.tune.rule import (
    FROZEN,
    HELD_OUT_FROM,
    LEAST_HELD_OUT,
    LEAST_UPDATES,
    MOST_STEP,
    PATIENCE,
    SEVERAL_IN_CONTEXT,
    SHORT_LR,
    Findings,
    choose,
)

SMOLLM = {"n_params": 134_515_008, "context": 8192}


def short(count: int, mean: int = 60, seed: int = 3) -> tuple[int, ...]:
    chance = random.Random(seed)
    return tuple(chance.randint(mean - 12, mean + 12) for _ in range(count))


def found(conversations: int | None, **more) -> Findings:
    lengths = more.pop("lengths", short(min(conversations or 0, 1000)))
    return Findings(conversations=conversations, lengths=lengths, **(SMOLLM | more))


@pytest.mark.parametrize(
    ("conversations", "updates", "tokens"),
    [
        (6, (100, 250), (64, 160)),
        (40, (100, 250), (64, 160)),
        (600, (250, 900), (128, 320)),
        (20_000, (2500, 6000), (512, 1024)),
    ],
)
def test_updates_follow_from_the_number_of_conversations(conversations, updates, tokens):
    chosen = choose(found(conversations))
    assert updates[0] <= chosen.max_steps <= updates[1]
    assert tokens[0] <= chosen.step_tokens <= tokens[1]
    assert chosen.passes >= 2.9


def test_more_conversations_never_get_fewer_updates():
    steps = [choose(found(count)).max_steps for count in (5, 40, 100, 199, 201, 600, 2000, 8000, 20_000)]
    assert all(later >= 0.85 * before for before, later in itertools.pairwise(steps)), steps
    assert min(steps) >= LEAST_UPDATES * 0.9


def test_few_conversations_are_all_learned_and_many_are_held_out_to_stop_by():
    few, some, many = choose(found(40)), choose(found(600)), choose(found(20_000))
    assert (few.val_fraction, few.patience) == (0, 0)
    assert 20 <= some.val_fraction * 600 <= 30
    assert many.val_fraction == 0.02
    assert some.patience == many.patience == PATIENCE
    assert choose(found(40, held_out=LEAST_HELD_OUT)).patience == PATIENCE


def test_too_few_held_out_conversations_end_no_run():
    few = choose(found(40, held_out=3))
    assert few.patience == 0
    assert few.max_steps == choose(found(40)).max_steps


def test_a_time_too_short_for_enough_updates_gets_steps_of_four_conversations_and_a_higher_rate():
    short_time, long_time = choose(found(40, seconds=120)), choose(found(40, seconds=1200))
    assert (short_time.step_tokens, short_time.lr_ratio) == (256, SHORT_LR)
    assert (long_time.step_tokens, long_time.lr_ratio) == (choose(found(40)).step_tokens, 1.0)
    assert choose(found(40, seconds=120, optimizer="muon")).lr_ratio == 1.0


def test_few_conversations_or_little_time_leave_lower_layers_alone():
    assert choose(found(40)).frozen == 0  # several processes, or a run as base
    assert choose(found(40, frozen=None)).frozen == FROZEN
    assert choose(found(40, frozen=0.25)).frozen == 0.25
    many = found(HELD_OUT_FROM, frozen=None)
    assert choose(many).frozen == 0
    assert choose(replace(many, seconds=60)).frozen == FROZEN
    # A frozen layer has a forward pass only: validations lie farther apart.
    assert choose(found(40, seconds=120, frozen=None)).eval_every > choose(found(40, seconds=120)).eval_every


def test_an_adapter_makes_more_updates_in_a_time():
    assert choose(found(40, seconds=120, adapter=True)).eval_every > choose(found(40, seconds=120)).eval_every
    # The time that is too short for all weights is long enough for an adapter.
    whole, adapter = choose(found(40, seconds=170)), choose(found(40, seconds=170, adapter=True))
    assert (whole.lr_ratio, adapter.lr_ratio) == (SHORT_LR, 1.0)
    assert adapter.step_tokens == choose(found(40)).step_tokens


def test_a_shared_beginning_leaves_time_for_more_updates():
    plain, alike = choose(found(40, seconds=120)), choose(found(40, seconds=120, shared=40))
    assert (alike.step_tokens, alike.lr_ratio) == (plain.step_tokens, plain.lr_ratio)  # learned no better
    assert choose(found(600, seconds=300, shared=40)).eval_every > choose(found(600, seconds=300)).eval_every
    # Enough updates of 128 tokens fit, of which half are computed: the step is no short one.
    assert choose(found(40, seconds=180)).lr_ratio == SHORT_LR
    assert choose(found(40, seconds=180, shared=40)).lr_ratio == 1.0


def test_little_time_has_few_validations_since_each_saves_a_checkpoint():
    short, long = choose(found(600, seconds=120)), choose(found(600, seconds=3600))
    assert (short.lr_ratio, long.lr_ratio) == (SHORT_LR, 1.0)
    assert short.val_fraction == long.val_fraction > 0
    assert long.max_steps == pytest.approx(10 * long.eval_every, abs=10)
    alone = choose(found(40, seconds=120))  # nothing is held out
    assert short.eval_every == alone.eval_every


def test_one_long_conversation_does_not_make_every_step_long():
    chosen = choose(found(600, lengths=(*short(599), 1500)))
    plain = choose(found(600))
    assert chosen.seq_len >= 1499
    assert chosen.pack_tokens <= 1.2 * plain.pack_tokens
    assert chosen.max_steps == pytest.approx(plain.max_steps, rel=0.2)


def test_a_conversation_longer_than_the_longest_sequence_loses_its_end():
    assert choose(found(40, lengths=(*short(39), 9000))).seq_len == 2048
    assert choose(found(40, lengths=(*short(39), 9000), context=512)).seq_len == SEVERAL_IN_CONTEXT


def test_what_a_person_sets_stays():
    assert choose(found(600, seq_len=128)).seq_len == 128
    chosen = choose(found(600, rows=(4, 2), seq_len=256))
    assert (chosen.micro_batch, chosen.grad_accum, chosen.seq_len, chosen.pack_tokens) == (4, 2, 256, None)
    assert choose(found(600, steps=7)).max_steps == 7
    once, thrice = choose(found(600, passes=1)), choose(found(600, passes=3))
    assert thrice.max_steps == pytest.approx(3 * once.max_steps, abs=3)
    assert choose(found(600, pack_tokens=512)).pack_tokens == 512


def test_passes_that_end_before_the_steps_are_the_length():
    """Else the learning rate is still at its peak where the conversations end."""
    assert choose(found(40, passes=2, steps=10_000)).max_steps == choose(found(40, passes=2)).max_steps
    assert choose(found(40, passes=50, steps=7)).max_steps == 7
    assert choose(found(None, passes=2, steps=10_000)).max_steps == 10_000


def test_processes_share_a_step():
    one, two = choose(found(600)), choose(found(600, processes=2, equal=True))
    assert (two.grad_accum, two.pack_tokens) == (2, None)
    assert two.step_tokens == pytest.approx(one.step_tokens, rel=0.3)


def test_muon_takes_larger_steps_and_replay_more_of_them():
    plain, muon = choose(found(20_000)), choose(found(20_000, optimizer="muon"))
    assert muon.step_tokens == 4096
    assert plain.step_tokens == MOST_STEP
    assert choose(found(600, replay=0.5)).max_steps == pytest.approx(2 * choose(found(600)).max_steps, abs=2)


def test_conversations_whose_number_is_not_known_give_a_run_of_so_many_tokens():
    chosen = choose(found(None))
    assert chosen.passes is None
    assert chosen.max_steps * chosen.step_tokens == pytest.approx(4_096_000)
    muon = choose(found(None, optimizer="muon"))
    assert (muon.seq_len, muon.micro_batch, muon.max_steps) == (1024, 4, 1000)


def test_a_budget_reads_more_and_validates_within_its_time():
    plain, timed = choose(found(600)), choose(found(600, seconds=60))
    assert timed.max_steps > plain.max_steps
    assert timed.eval_every < plain.eval_every


def test_validations_take_a_tenth_of_the_time_at_most():
    for conversations in (6, 40, 600, 20_000):
        chosen = choose(found(conversations))
        scored = chosen.eval_blocks * chosen.seq_len * chosen.max_steps / chosen.eval_every
        assert scored / 3 <= 0.16 * chosen.max_steps * chosen.step_tokens


def test_the_second_moment_keeps_its_half_life_in_tokens():
    assert choose(found(40)).beta2 > choose(found(20_000)).beta2 > 0.95
