"""Pending prefix-cache hits: a prefix that several prompts have is computed once, and copied."""

import dataclasses
import random

import pytest

from slm.serve.engine.batch_plan import Limits, Sequence, make_plan
from slm.serve.engine.config import EngineConfig
from slm.serve.engine.engine import Engine
from slm.serve.engine.protocol import Cancel, Delta, Failure, Generate, PrefillDone, SamplingParams
from slm.serve.engine.scheduler import Scheduler

SYSTEM = "the old fox and the little bird went to the river to find the red boat that the wind had taken away " * 5
LIMITS = Limits(batch=64, prefill_chunk=16, kv_tokens=10_000, prefix_cache=True, min_copied=64)


def engine(path, **more):
    options = {"threads": 1, "kv_type": "f32", "flash_attn": False, **more}
    return Engine(EngineConfig(model_path=path, **options))


def run(engine, requests):
    """id -> (text, prompt tokens, cached tokens)"""
    events = [event for request in requests for event in engine.handle(request)]
    n_steps = 0
    while engine.busy:
        events += engine.step()
        n_steps += 1
    assert not any(isinstance(event, Failure) for event in events), events
    prompted = {event.id: event for event in events if isinstance(event, PrefillDone)}
    texts = {request.id: "" for request in requests}
    for event in events:
        if isinstance(event, Delta):
            texts[event.id] += event.text
    return {key: (text, prompted[key].prompt_tokens, prompted[key].cached_tokens) for key, text in texts.items()}


def ask(i, prompt, **more):
    return Generate(id=str(i), prompt=prompt, sampling=SamplingParams(temperature=0), **{"max_tokens": 12, **more})


@pytest.fixture(scope="module")
def plain(tiny_path):
    one = engine(tiny_path, slots=1, prefix_cache=False)
    known = {}

    def text(prompt):
        if prompt not in known:
            known[prompt] = run(one, [ask("a", prompt)])["a"][0]
        return known[prompt]

    yield text
    one.close()


OPTIONS = [{}, {"kv_tokens": 4096}, {"batch": 32, "ubatch": 32}, {"speculate": "lookup"}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_prompts_that_arrive_together_share_their_prefix(tiny_path, plain, options):
    one = engine(tiny_path, slots=6, **options)
    for _ in range(2):
        prompts = [SYSTEM + each for each in ("hello", "why is the boat red", "x", "a fox", "the end", "once more")]
        out = run(one, [ask(i, prompt) for i, prompt in enumerate(prompts)])
        assert {key: value[0] for key, value in out.items()} == {str(i): plain(p) for i, p in enumerate(prompts)}
    again = engine(tiny_path, slots=6, **options)
    out = run(again, [ask(i, prompt) for i, prompt in enumerate(prompts)])
    computed = [n_prompt - n_cached for _, n_prompt, n_cached in out.values()]
    # One computes all of it, the others what is their own.
    assert [cached for _, _, cached in out.values()].count(0) == 1
    assert sorted(computed)[-2] < 64
    for each in (one, again):
        each.close()


def test_n_completions_of_a_prompt_compute_it_once(tiny_path):
    one = engine(tiny_path, slots=4)
    hot = SamplingParams(temperature=1.5, seed=1)
    asked = [ask(i, SYSTEM, max_tokens=8) for i in range(4)]
    asked = [dataclasses.replace(r, sampling=dataclasses.replace(hot, seed=int(r.id))) for r in asked]
    out = run(one, asked)
    assert sorted(n - cached for _, n, cached in out.values())[:3] == [1, 1, 1]
    assert len({text for text, _, _ in out.values()}) > 1
    one.close()


def test_a_request_that_may_not_share_computes_its_own(tiny_path, plain):
    one = engine(tiny_path, slots=3)
    out = run(one, [ask(i, SYSTEM, use_prefix_cache=False) for i in range(3)])
    assert [value[2] for value in out.values()] == [0, 0, 0]
    assert {value[0] for value in out.values()} == {plain(SYSTEM)}
    one.close()


def test_a_conversation_stays_while_another_begins_like_it(tiny_path, plain):
    """With an empty slot free, the prefix is copied out of the slot that caches it, which keeps the rest."""
    one = engine(tiny_path, slots=3)
    talk = SYSTEM + "and then " * 30
    run(one, [ask("a", talk)])
    assert run(one, [ask("b", SYSTEM + "hello")])["b"][2] > 100
    text, n_prompt, n_cached = run(one, [ask("c", talk + "again")])["c"]
    assert text == plain(talk + "again")
    assert n_prompt - n_cached < 20
    one.close()


@pytest.mark.parametrize("options", [{}, {"kv_tokens": 700}], ids=str)
def test_random_arrivals_and_departures(tiny_path, plain, options):
    rng = random.Random(4)
    one = engine(tiny_path, slots=4, context=512, batch=64, ubatch=64, prefill_chunk=32, **options)
    beginnings = [SYSTEM, SYSTEM[:200] + "but " * 20, "once upon a time there was a girl " * 9]
    asked, events = {}, []
    for i in range(60):
        prompt = rng.choice(beginnings) + rng.choice(["hello", "x", "why", ""])
        asked[str(i)] = prompt
        events += one.handle(ask(i, prompt))
        for _ in range(rng.choice([0, 0, 1, 5, 15])):
            events += one.step()
        if rng.random() < 0.2:
            gone = rng.choice(list(asked))
            one.handle(Cancel(id=gone))
            del asked[gone]
    while one.busy:
        events += one.step()
    texts = dict.fromkeys(asked, "")
    for event in events:
        assert not isinstance(event, Failure)
        if isinstance(event, Delta) and event.id in texts:
            texts[event.id] += event.text
    assert texts == {key: plain(prompt) for key, prompt in asked.items()}
    cached = sum(event.cached_tokens for event in events if isinstance(event, PrefillDone))
    assert cached > sum(event.prompt_tokens for event in events if isinstance(event, PrefillDone)) / 3
    one.close()


# -- the plan ----------------------------------------------------------------------------------------------


def waiting(key, tokens, **more):
    return Sequence(id=key, tokens=list(tokens), n_prompt=len(tokens), **more)


def test_the_second_waits_for_the_first_and_others_pass():
    shared, other = list(range(200)), [7, *range(500, 560)]
    scheduler = Scheduler(slots=3, limits=LIMITS)
    for key, tokens in (("a", [*shared, 900]), ("b", [*shared, 901]), ("c", other)):
        scheduler.add(waiting(key, tokens))
    admitted = []
    for _ in range(6):
        plan = scheduler.plan()
        hits = zip(plan.admitted, plan.n_cached, plan.copied_from, strict=True)
        admitted += [(key, n_cached, source) for (key, _), n_cached, source in hits]
        scheduler.commit(plan)
    assert admitted[0] == ("a", 0, None)
    # The batch had no room before "a" was computed; then "b" has what they share.
    assert {(key, source) for key, _, source in admitted} == {("a", None), ("b", 0), ("c", None)}
    assert all(n_cached > 200 - LIMITS.min_copied for key, n_cached, _ in admitted if key == "b")


def test_a_slot_is_reserved_for_a_pending_hit():
    shared = list(range(200))
    busy = Sequence(id="a", tokens=[*shared, 900], n_prompt=201, n_computed=100, slot=0)
    queue = [waiting("b", [*shared, 901]), waiting("c", [5] * 3)]
    roomy = dataclasses.replace(LIMITS, batch=128)
    assert make_plan([busy], queue, [1], roomy).admitted == ()
    assert make_plan([busy], queue, [1, 2], roomy).admitted == (("c", 1),)
    # Where the common prefix is too short, nobody waits.
    queue = [waiting("b", [*shared[:60], 901])]
    plan = make_plan([busy], queue, [1, 2], roomy)
    assert (plan.admitted, plan.n_cached, plan.copied_from) == ((("b", 1),), (0,), (None,))


def test_what_a_running_sequence_has_is_copied_at_once():
    shared = list(range(200))
    busy = Sequence(id="a", tokens=[*shared, 900, 1], n_prompt=201, n_computed=201, slot=0)
    plan = make_plan([busy], [waiting("b", [*shared, 901, 902])], [1, 2], LIMITS)
    assert (plan.admitted, plan.n_cached, plan.copied_from) == ((("b", 1),), (200,), (0,))
    assert plan.chunks[-1].tokens == (901, 902)
    for without in (
        waiting("b", [*shared, 901], use_prefix_cache=False),
        waiting("b", [*shared, 901], scores_prompt=True),
    ):
        assert make_plan([busy], [without], [1, 2], LIMITS).copied_from == (None,)
    assert make_plan(
        [busy], [waiting("b", [*shared, 901])], [1], dataclasses.replace(LIMITS, min_copied=0)
    ).n_cached == (0,)
