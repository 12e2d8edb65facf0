import random
from dataclasses import replace

import pytest

from slm.serve.engine.batch_plan import Limits, Sequence, make_plan
from slm.serve.engine.scheduler import Scheduler

LIMITS = Limits(batch=64, prefill_chunk=16, kv_tokens=1000)


def waiting(key, n):
    return Sequence(id=key, tokens=list(range(n)), n_prompt=n)


def generating(key, slot, n_prompt=5, n_more=3):
    n = n_prompt + n_more
    return Sequence(id=key, tokens=list(range(n)), n_prompt=n_prompt, n_computed=n - 1, slot=slot)


def test_a_prompt_longer_than_the_batch_is_chunked():
    scheduler = Scheduler(slots=1, limits=LIMITS)
    scheduler.add(waiting("a", 150))
    seen = []
    for _ in range(3):
        plan = scheduler.plan()
        (chunk,) = plan.chunks
        seen.append((chunk.start, len(chunk.tokens), chunk.logits))
        scheduler.commit(plan)
    assert seen == [(0, 64, "none"), (64, 64, "none"), (128, 22, "last")]


def test_streams_go_on_while_a_long_prompt_is_read():
    plan = make_plan([generating("a", 0), generating("b", 1)], [waiting("c", 500)], [2, 3], LIMITS)
    assert plan.admitted == (("c", 2),)
    a, b, c = plan.chunks
    assert (a.slot, a.start, a.tokens, a.logits) == (0, 7, (7,), "last")
    assert b.slot == 1
    assert (c.slot, c.start, len(c.tokens), c.logits) == (2, 0, 16, "none")


def test_a_slot_that_is_wanted():
    first, second = waiting("a", 30), waiting("b", 20)
    first.wanted_slot = second.wanted_slot = 2
    # Only one can have it, and only what that slot holds counts.
    limits = Limits(batch=64, prefill_chunk=64, kv_tokens=1000, prefix_cache=True)
    plan = make_plan([], [first, second], [0, 1, 2], limits, {1: list(range(25))})
    assert [(key, slot) for key, slot in plan.admitted] == [("a", 2), ("b", 1)]
    assert plan.n_cached == (0, 19)
    first.wanted_slot = 7
    assert make_plan([], [first], [0, 1, 2], limits).admitted == (("a", 0),)


def test_running_prompts_go_before_waiting_ones():
    half = Sequence(id="half", tokens=list(range(100)), n_prompt=100, n_computed=50, slot=0)
    plan = make_plan([half], [waiting("new", 30)], [1], LIMITS)
    assert [(c.sequence_id, len(c.tokens), c.logits) for c in plan.chunks] == [
        ("half", 50, "last"),
        ("new", 14, "none"),
    ]


@pytest.mark.parametrize("mixed", [True, False])
def test_a_short_prompt_waits_for_one_step_of_a_long_one(mixed):
    """Every other step goes to the prompt with the fewest tokens left, so the long one goes on, too."""
    scheduler = Scheduler(slots=3, limits=Limits(batch=64, prefill_chunk=16, kv_tokens=10_000, mixed=mixed))
    scheduler.add(waiting("long", 1000))
    scheduler.commit(scheduler.plan())
    for key in ("one", "two"):
        scheduler.add(waiting(key, 100))
    seen = []
    for _ in range(5):
        plan = scheduler.plan()
        seen.append([chunk.sequence_id for chunk in plan.chunks])
        scheduler.commit(plan)
    assert seen == [["long"], ["one"], ["long"], ["one", "two"], ["long"]]


def test_a_long_prompt_gets_half_of_the_steps_however_many_short_ones_come():
    scheduler = Scheduler(slots=2, limits=LIMITS)
    scheduler.add(long := waiting("long", 640))
    steps = 0
    while steps < 100 and long.n_computed < 640:
        if not scheduler.n_waiting:
            scheduler.add(waiting(f"{steps}", 50))
        plan = scheduler.plan()
        scheduler.commit(plan)
        for chunk in plan.chunks:
            if chunk.sequence_id != "long" and chunk.logits == "last":
                scheduler.remove(chunk.sequence_id)
        steps += 1
    assert steps <= 20


def test_no_slot_no_admission():
    plan = make_plan([generating("a", 0)], [waiting("b", 3)], [], LIMITS)
    assert plan.admitted == ()
    assert [c.sequence_id for c in plan.chunks] == ["a"]


def test_nobody_overtakes_the_head_of_the_queue_for_cache_room():
    limits = Limits(batch=64, prefill_chunk=64, kv_tokens=100)
    queue = [waiting("big", 95), waiting("small", 3)]
    assert make_plan([generating("a", 0)], queue, [1, 2], limits).admitted == ()
    # Alone, even what fills the cache is admitted.
    assert make_plan([], queue, [0, 1], limits).admitted == (("big", 0),)


def test_the_plan_is_frozen_and_planning_changes_nothing():
    running, queue = [generating("a", 0)], [waiting("b", 3)]
    before = [(s.id, s.n_computed, s.slot, list(s.tokens)) for s in running + queue]
    plan = make_plan(running, queue, [1], LIMITS)
    assert [(s.id, s.n_computed, s.slot, list(s.tokens)) for s in running + queue] == before
    with pytest.raises(AttributeError):
        plan.chunks = ()


def test_scored_prompts_want_every_logit():
    sequence = waiting("a", 70)
    sequence.scores_prompt = True
    (chunk,) = make_plan([], [sequence], [0], LIMITS).chunks
    assert chunk.logits == "all"
    sequence.n_computed, sequence.slot = 70, 0
    sequence.tokens.append(1)
    (chunk,) = make_plan([sequence], [], [], LIMITS).chunks
    assert chunk.logits == "last"


def test_preemption_takes_the_youngest_and_it_comes_back_first():
    scheduler = Scheduler(slots=2, limits=LIMITS)
    for key in "abc":
        scheduler.add(waiting(key, 4))
    scheduler.commit(scheduler.plan())
    victim, slot = scheduler.preempt()
    assert (victim.id, slot, victim.slot, victim.n_computed) == ("b", 1, None, 0)
    assert scheduler.preempt() is None  # the last one stays
    assert scheduler.plan().admitted == (("b", 1),)


APART = Limits(batch=512, prefill_chunk=256, kv_tokens=10_000, mixed=False)


def shapes(plan):
    return [(chunk.sequence_id, chunk.start, len(chunk.tokens)) for chunk in plan.chunks]


def steps_of(scheduler, n):
    """The shapes of ``n`` steps, each with a token sampled wherever one can be."""
    steps = []
    for _ in range(n):
        plan = scheduler.plan()
        steps.append(shapes(plan))
        scheduler.commit(plan)
        for chunk in plan.chunks:
            sequence = next(each for each in scheduler._running if each.id == chunk.sequence_id)
            if sequence.n_to_compute == 0:
                sequence.tokens.append(0)
    return steps


def test_apart_from_the_streams_prompts_come_one_after_the_other():
    scheduler = Scheduler(slots=4, limits=APART)
    scheduler.add(waiting("a", 115))
    steps = steps_of(scheduler, 1)
    steps += steps_of(scheduler, 1)
    for key in "bcd":
        scheduler.add(waiting(key, 115))
    steps += steps_of(scheduler, 5)
    assert steps[:2] == [[("a", 0, 115)], [("a", 115, 1)]]
    # The stream waits for two more prompts, which is nearly what it may have to wait for.
    assert steps[2:4] == [[("b", 0, 115)], [("c", 0, 115)]]
    assert steps[4] == [("a", 116, 1), ("b", 115, 1), ("c", 115, 1)]
    assert steps[5] == [("d", 0, 115)]
    assert steps[6] == [("a", 117, 1), ("b", 116, 1), ("c", 116, 1), ("d", 115, 1)]


@pytest.mark.parametrize("mixed", [True, False])
def test_prompts_of_one_moment_come_before_the_streams_of_that_moment(mixed):
    """Four clients at once had their last first text after 1.07 s instead of 0.7: streams had steps in between."""
    scheduler = Scheduler(slots=4, limits=replace(APART, mixed=mixed, batch=128, prefill_chunk=16))
    scheduler.add(waiting("a", 115))
    plan = scheduler.plan()
    for key in "bcd":
        scheduler.add(waiting(key, 115))  # while the first one is computed
    scheduler.commit(plan)
    next(each for each in scheduler._running).tokens.append(0)
    steps = steps_of(scheduler, 4)
    if mixed:
        # Their rows cost little in the same pass.
        assert steps[0] == [("a", 115, 1), ("b", 0, 115), ("c", 0, 12)]
    else:
        assert steps[:3] == [[("b", 0, 115)], [("c", 0, 115)], [("d", 0, 115)]]
        assert steps[3] == [(key, 115, 1) for key in "abcd"]


def test_they_wait_for_a_second_at_most():
    scheduler = Scheduler(slots=9, limits=replace(APART, prefill_chunk=16))
    scheduler.limit_prefill(streams=16, short=16, alone=300, slot_tokens=1000)
    for i in range(8):
        scheduler.add(waiting(f"{i}", 100))
    steps = steps_of(scheduler, 10)
    assert [len(step) for step in steps] == [1, 1, 1, 1, 4, 1, 1, 1, 7, 1]


@pytest.mark.parametrize(("n", "later"), [(301, False), (100, True)])
def test_a_stream_does_not_wait_for_a_long_prompt_or_a_later_one(n, later):
    scheduler = Scheduler(slots=2, limits=replace(APART, prefill_chunk=16))
    scheduler.limit_prefill(streams=16, short=16, alone=300, slot_tokens=1000)
    scheduler.add(waiting("stream", 100))
    if not later:
        scheduler.add(waiting("other", n))
    steps = steps_of(scheduler, 1)
    if later:
        steps += steps_of(scheduler, 1)
        scheduler.add(waiting("other", n))
    steps += steps_of(scheduler, 4)
    assert [(key, n) for ((key, _, n),) in steps][-4:] == [("other", 16), ("stream", 1)] * 2


@pytest.mark.parametrize(("n", "sizes"), [(100, [100]), (256, [128, 128]), (257, [16, 16])])
def test_streams_wait_longer_for_a_short_prompt(n, sizes):
    """Cut into small parts, 127 tokens next to one stream took three times as long as whole."""
    limits = replace(APART, prefill_chunk=16, short_chunk=128)
    stream, prompt = generating("stream", 0), waiting("prompt", n)
    found = [len(chunk.tokens) for chunk in make_plan([stream], [prompt], [1], limits).chunks]
    prompt.slot, prompt.n_computed = 1, found[0]
    if found[0] < n:
        found += [len(chunk.tokens) for chunk in make_plan([stream, prompt], [], [], limits).chunks]
    assert found == sizes
    # What is in the cache does not make a prompt long.
    limits = replace(limits, prefix_cache=True)
    again = make_plan([stream], [waiting("again", n + 100)], [1], limits, {1: list(range(100))})
    assert len(again.chunks[0].tokens) == sizes[0]


def test_short_prompts_share_a_batch():
    queue = [waiting(f"{i}", 30) for i in range(5)]
    plan = make_plan([generating("a", 0)], queue, [1, 2, 3, 4, 5], APART)
    assert shapes(plan) == [("0", 0, 30), ("1", 0, 30), ("2", 0, 30)]


def test_streams_wait_for_no_more_than_a_chunk_of_a_long_prompt():
    scheduler = Scheduler(slots=2, limits=APART)
    stream = generating("a", 0)
    scheduler._slots.take(0, "a")
    scheduler._running.append(stream)
    stream.n_before = 0
    scheduler.add(waiting("long", 1000))
    seen = []
    for _ in range(8):
        plan = scheduler.plan()
        seen += [(key, n) for key, _, n in shapes(plan)]
        scheduler.commit(plan)
        if plan.chunks[0].sequence_id == "a":
            stream.tokens.append(0)
    assert seen == [("long", 256), ("a", 1)] * 3 + [("long", 232), ("a", 1)]


def test_small_batches_leave_prompts_their_turn():
    """A batch that is smaller than what prompts are given at least is given whole."""
    limits = Limits(batch=32, prefill_chunk=256, kv_tokens=10_000, mixed=False)
    plan = make_plan([generating("a", 0)], [waiting("b", 100)], [1], limits)
    assert shapes(plan) == [("b", 0, 32)]


def test_streams_go_on_when_nobody_waiting_can_be_admitted():
    plan = make_plan([generating("a", 0)], [waiting("b", 100)], [], APART)
    assert shapes(plan) == [("a", 7, 1)]


@pytest.mark.parametrize("mixed", [True, False])
def test_random_traffic_loses_and_doubles_nothing(mixed):
    rng = random.Random(0)
    scheduler = Scheduler(slots=3, limits=Limits(batch=32, prefill_chunk=8, kv_tokens=200, mixed=mixed))
    alive, added, finished = {}, 0, []
    for _ in range(3000):
        if rng.random() < 0.1 and added < 100:
            sequence = waiting(f"s{added}", rng.randint(1, 60))
            alive[sequence.id] = (sequence, len(sequence.tokens) + rng.randint(1, 20))
            scheduler.add(sequence)
            added += 1
        if rng.random() < 0.02:
            scheduler.preempt()
        plan = scheduler.plan()
        assert sum(len(c.tokens) for c in plan.chunks) <= 32
        assert len({c.slot for c in plan.chunks}) == len(plan.chunks) <= 3
        for chunk in plan.chunks:
            sequence, _ = alive[chunk.sequence_id]
            assert chunk.start == sequence.n_computed
            assert list(chunk.tokens) == sequence.tokens[chunk.start : chunk.start + len(chunk.tokens)]
        scheduler.commit(plan)
        for chunk in plan.chunks:
            sequence, goal = alive[chunk.sequence_id]
            if sequence.n_to_compute == 0:
                assert chunk.logits == "last"
                sequence.tokens.append(len(sequence.tokens))
                if len(sequence.tokens) >= goal:
                    assert scheduler.remove(sequence.id) == chunk.slot
                    del alive[sequence.id]
                    finished.append(sequence.id)
    assert added == 100
    assert not alive
    assert len(set(finished)) == 100
    assert scheduler.n_running == scheduler.n_waiting == 0


def test_a_prompt_waits_at_the_end_of_its_slot_and_holds_nobody_up():
    """Until slots have grown; then it goes on."""
    scheduler = Scheduler(slots=3, limits=LIMITS)
    scheduler.limit_prefill(streams=16, short=16, alone=64, slot_tokens=40)
    scheduler.add(waiting("long", 100))
    scheduler.add(waiting("short", 10))
    scheduler.commit(plan := scheduler.plan())
    assert [(c.sequence_id, c.start, len(c.tokens)) for c in plan.chunks] == [("long", 0, 40), ("short", 0, 10)]
    scheduler.remove("short")
    assert scheduler.plan().chunks == ()
    scheduler.limit_prefill(streams=16, short=16, alone=64, slot_tokens=200)
    (chunk,) = scheduler.plan().chunks
    assert (chunk.sequence_id, chunk.start, len(chunk.tokens), chunk.logits) == ("long", 40, 60, "last")


def test_a_prompt_takes_what_forced_tokens_leave_of_a_batch():
    """Also where the prompt's rest would be below a tile."""
    limits = Limits(batch=64, prefill_chunk=64, kv_tokens=1000, tile=16)
    stream = generating("stream", 0, n_more=32)
    stream.n_computed, stream.n_forced = stream.n_computed - 31, 31
    long = Sequence(id="long", tokens=list(range(40)), n_prompt=40, slot=1)
    forced, prompt = make_plan([stream, long], [], [], limits).chunks
    assert (forced.sequence_id, len(forced.tokens), prompt.sequence_id) == ("stream", 32, "long")
    assert len(prompt.tokens) <= 32


def test_who_waits_for_a_mask_is_no_prompt():
    scheduler = Scheduler(slots=2, limits=LIMITS)
    scheduler.add(waiting("late", 5))
    assert (scheduler.n_prompts, scheduler.has_work) == (1, True)
    scheduler.commit(scheduler.plan())
    assert (scheduler.n_prompts, scheduler.has_work) == (0, False)
    assert scheduler.plan().chunks == ()


@pytest.mark.parametrize("n", range(16, 200, 7))
@pytest.mark.parametrize("mixed", [True, False])
def test_no_rest_below_a_tile_is_left(n, mixed):
    """Flash attention computes fewer rows one by one, which takes longer than a whole tile."""
    limits = Limits(batch=64, prefill_chunk=32, kv_tokens=1000, tile=16, mixed=mixed)
    stream, sizes = generating("stream", 0), []
    long = Sequence(id="long", tokens=list(range(n)), n_prompt=n, slot=1)
    while long.n_computed < n:
        plan = make_plan([stream, long], [], [], limits)
        assert sum(len(chunk.tokens) for chunk in plan.chunks) <= 64
        sizes += [len(chunk.tokens) for chunk in plan.chunks if chunk.sequence_id == "long"]
        long.n_computed = sum(sizes)
    assert sum(sizes) == n
    assert min(sizes) >= 16
    assert max(sizes) < 32 + 16
