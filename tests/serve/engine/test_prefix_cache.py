"""Prompts with the prefix of earlier ones are computed from where they differ; the text stays the same."""

import random

import httpx
import pytest

from slm.llama.quantize import quantize
from slm.serve.engine.batch_plan import MIN_CACHED, Limits, Sequence, make_plan
from slm.serve.engine.config import EngineConfig
from slm.serve.engine.engine import Engine
from slm.serve.engine.protocol import Cancel, Delta, Failure, Generate, PrefillDone, SamplingParams
from slm.serve.engine.scheduler import Scheduler
from tests.helpers import tiny_checkpoint

SYSTEM = "the old fox and the little bird went to the river to find the red boat that the wind had taken away "
MESSAGES = [{"role": "user", "content": SYSTEM}]
LIMITS = Limits(batch=64, prefill_chunk=16, kv_tokens=1000, prefix_cache=True)


def engine(path, **more):
    # Without half precision anywhere, logits differ by 1e-6 from one shape of batch to another, not by 1e-2.
    return Engine(EngineConfig(model_path=path, threads=1, kv_type="f32", flash_attn=False, **more))


def run(engine, *requests):
    """id -> (text, cached tokens)"""
    events = [event for request in requests for event in engine.handle(request)]
    while engine.busy:
        events += engine.step()
    assert not any(isinstance(event, Failure) for event in events), events
    cached = {event.id: event.cached_tokens for event in events if isinstance(event, PrefillDone)}
    texts = {request.id: "" for request in requests}
    for event in events:
        if isinstance(event, Delta):
            texts[event.id] += event.text
    return {key: (text, cached[key]) for key, text in texts.items()}


def ask(key, prompt, **more):
    return Generate(id=key, prompt=prompt, sampling=SamplingParams(temperature=0), **{"max_tokens": 20, **more})


@pytest.fixture(scope="module")
def plain(tiny_path):
    """Greedy text of a prompt without any cache."""
    one = engine(tiny_path, slots=1, prefix_cache=False)

    def text(prompt, **more):
        answer, cached = run(one, ask("a", prompt, **more))["a"]
        assert cached == 0
        return answer

    yield text
    one.close()


@pytest.mark.parametrize("options", [{}, {"slots": 1}, {"kv_tokens": 1024}, {"batch": 16, "ubatch": 16}])
def test_a_conversation_is_computed_once(tiny_path, plain, options):
    one = engine(tiny_path, **options)
    talk, before = SYSTEM, 0
    for turn in range(4):
        text, cached = run(one, ask("a", talk))["a"]
        assert text == plain(talk)
        assert cached > before or turn == 0
        before = cached
        talk += text + f" And then? {turn} "
    # The very same prompt again: all but the token that gives the first logits.
    prompt = tuple(one._model.tokenize(talk, add_special=True, parse_special=False))
    run(one, ask("a", prompt))
    text, cached = run(one, ask("b", prompt))["b"]
    assert cached == len(prompt) - 1
    assert text == plain(prompt)
    one.close()


def test_a_model_with_sliding_windows_takes_prefixes_where_they_are_kept(tmp_path):
    """With a cache per slot; in one for all, other requests get the cells that a window has left behind."""
    path = tiny_checkpoint.gguf_file(
        tmp_path / "gemma.gguf", arch="gemma3", tie_embeddings=True, n_layers=3, sliding_window=12, rope_theta=1e6,
        local_layers=(True, False, True), seq_len=512,
    )  # fmt: skip
    plain = engine(path, slots=1, prefix_cache=False)
    prompts = [SYSTEM + "one", SYSTEM + "two", SYSTEM[:60] + "three"]
    expected = [run(plain, ask("a", prompt, max_tokens=30))["a"][0] for prompt in prompts]
    plain.close()
    for options, hits in (({"slots": 1}, [0, 60, 20]), ({"slots": 2, "kv_tokens": 512}, [0, 0, 0])):
        one = engine(path, **options)
        found = [run(one, ask("a", prompt, max_tokens=30))["a"] for prompt in prompts]
        one.close()
        assert [text for text, _ in found] == expected
        assert all(cached >= hit and bool(cached) == bool(hit) for (_, cached), hit in zip(found, hits, strict=True))


@pytest.mark.parametrize("options", [{"slots": 1}, {"slots": 3}, {"slots": 3, "kv_tokens": 1536}])
def test_a_model_with_short_convolutions_gives_the_same_texts_one_after_another_and_together(tmp_path, options):
    """A slot then holds a state, which cannot be cut back to a prefix: what a prompt has in common with an earlier one
    is computed again, unless it is all of that."""
    path = tiny_checkpoint.gguf_file(tmp_path / "lfm2.gguf", arch="lfm2", n_layers=4, seq_len=512)
    plain = engine(path, slots=1, prefix_cache=False)
    prompts = [SYSTEM + "one", SYSTEM + "two", SYSTEM[:60] + "three", SYSTEM + "one and then"]
    expected = [run(plain, ask("a", prompt, max_tokens=30))["a"][0] for prompt in prompts]
    plain.close()
    one = engine(path, **options)
    assert [run(one, ask("a", prompt, max_tokens=30))["a"][0] for prompt in prompts] == expected
    together = run(one, *(ask(str(key), prompt, max_tokens=30) for key, prompt in enumerate(prompts)))
    assert [together[str(key)][0] for key in range(len(prompts))] == expected
    one.close()


def test_a_prompt_may_go_back_behind_the_reply_and_differ(tiny_path, plain):
    one = engine(tiny_path, slots=1)
    run(one, ask("a", SYSTEM + "one", max_tokens=60))
    for prompt in (SYSTEM + "two", SYSTEM[:60] + "three", SYSTEM):
        text, cached = run(one, ask("b", prompt))["b"]
        assert cached >= MIN_CACHED
        assert text == plain(prompt)
    one.close()


def test_random_traffic_with_cancels_equals_the_uncached(tiny_path, plain):
    rng = random.Random(1)
    prefixes = [SYSTEM, SYSTEM[:50], "once upon a time there was a girl who had a blue hat " * 2, ""]
    many = engine(tiny_path, slots=3, kv_tokens=600, context=512, batch=64, ubatch=64, prefill_chunk=32)
    asked, events, reused = {}, [], 0
    for i in range(60):
        prompt = rng.choice(prefixes) + f"{rng.choice(['hello', 'x', 'the boat'])} {rng.randint(0, 3)}"
        asked[str(i)] = prompt
        events += many.handle(ask(str(i), prompt, max_tokens=8))
        for _ in range(rng.randint(0, 6)):
            events += many.step()
        if rng.random() < 0.2:
            gone = rng.choice(list(asked))
            many.handle(Cancel(id=gone))
            del asked[gone]
    while many.busy:
        events += many.step()
    texts = dict.fromkeys(asked, "")
    for event in events:
        assert not isinstance(event, Failure)
        if isinstance(event, Delta) and event.id in texts:
            texts[event.id] += event.text
        if isinstance(event, PrefillDone):
            reused += event.cached_tokens > 0
    assert texts == {key: plain(prompt, max_tokens=8) for key, prompt in asked.items()}
    assert reused > 5
    many.close()


def test_scored_prompts_are_computed_whole(tiny_path):
    one = engine(tiny_path, slots=1)
    scored = ask("a", SYSTEM, echo=True, top_logprobs=1)
    run(one, ask("b", SYSTEM))
    events = one.handle(scored)
    while one.busy:
        events += one.step()
    assert events[0].cached_tokens == 0
    assert len(events[0].logprobs) == events[0].prompt_tokens
    one.close()


def test_a_request_may_do_without(tiny_path):
    one = engine(tiny_path, slots=1)
    for key in "ab":
        assert run(one, ask(key, SYSTEM, use_prefix_cache=False))[key][1] == 0
    assert run(one, ask("c", SYSTEM))["c"][1] > 0
    one.close()


@pytest.mark.parametrize("options", [{}, {"slots": 1}, {"kv_tokens": 1024, "prefix_cache": False}])
def test_a_seed_repeats_on_a_quantized_model_whatever_came_before(tiny_path, tmp_path, options):
    """The promise of docs/serving-operation.md, for requests that come one at a time."""
    path = tmp_path / "q8.gguf"
    quantize(tiny_path, path, "q8_0", n_threads=1)
    one = Engine(EngineConfig(model_path=path, threads=1, **options))
    rng, texts = random.Random(3), {}
    prompts = [SYSTEM, SYSTEM + "one", SYSTEM[:40] + "two"]
    for i in range(24):
        prompt = rng.choice(prompts)
        seeded = rng.random() < 0.5
        sampling = SamplingParams(seed=7, temperature=1.0)
        request = Generate(id=str(i), prompt=prompt, sampling=sampling, max_tokens=30, use_prefix_cache=not seeded)
        text, cached = run(one, request)[str(i)]
        if seeded:
            assert cached == 0
            assert text == texts.setdefault(prompt, text)
    assert len(texts) == 3
    one.close()


def test_without_a_prefix_cache_nothing_is_reused(tiny_path):
    one = engine(tiny_path, prefix_cache=False)
    for key in "ab":
        assert run(one, ask(key, SYSTEM))[key][1] == 0
    one.close()


def waiting(key, tokens):
    return Sequence(id=key, tokens=list(tokens), n_prompt=len(tokens))


def test_the_longest_common_prefix_is_chosen():
    cached = {0: range(30), 1: range(50), 2: [9] * 60}
    plan = make_plan([], [waiting("a", range(60))], [2, 0, 1], LIMITS, cached)
    assert plan.admitted == (("a", 1),)
    assert plan.n_cached == (50,)
    assert (plan.chunks[0].start, plan.chunks[0].tokens) == (50, tuple(range(50, 60)))
    # All of it: one token is computed all the same.
    plan = make_plan([], [waiting("a", range(50))], [2, 0, 1], LIMITS, cached)
    assert plan.n_cached == (49,)
    assert plan.chunks[0].logits == "last"


def test_a_few_shared_words_do_not_cost_a_long_conversation():
    cached = {0: list(range(20)) + [7] * 400}
    plan = make_plan([], [waiting("a", [*range(20), 8])], [1, 0], LIMITS, cached)
    assert (plan.admitted, plan.n_cached) == ((("a", 1),), (0,))
    # With no other slot free, they are of use.
    plan = make_plan([], [waiting("a", [*range(20), 8])], [0], LIMITS, cached)
    assert (plan.admitted, plan.n_cached) == ((("a", 0),), (20,))
    # Fewer than it is worth.
    assert make_plan([], [waiting("a", range(MIN_CACHED))], [0], LIMITS, cached).n_cached == (0,)


def test_slots_next_to_those_in_use_are_preferred():
    def chosen(free, cached, taken=3, prompt=range(100)):
        busy = Sequence(id="z", tokens=[1, 2, 3], n_prompt=2, n_computed=2, slot=taken)
        return make_plan([busy], [waiting("a", prompt)], free, LIMITS, cached).admitted[0][1]

    assert chosen([0, 1, 2, 4], {}) == 2
    assert chosen([0, 1, 4, 2], {}) == 4
    # A long common prefix is worth the gap, a short one is not.
    assert chosen([0, 1, 2, 4], {0: range(90)}) == 0
    assert chosen([0, 1, 2, 4], {0: range(30)}) == 2
    # Sequences admitted together stay together.
    plan = make_plan([], [waiting("a", range(9)), waiting("b", range(9))], [5, 0, 6], LIMITS, {})
    assert [slot for _, slot in plan.admitted] == [5, 6]


def test_only_what_was_computed_is_cached_and_evicted_oldest_first():
    scheduler = Scheduler(slots=2, limits=LIMITS)
    for key in "ab":
        scheduler.add(waiting(key, range(40)))
    plan = scheduler.plan()
    scheduler.commit(plan)
    assert [len(chunk.tokens) for chunk in plan.chunks] == [40, 24]
    assert (scheduler.remove("a"), scheduler.remove("b")) == (0, 1)
    scheduler.add(waiting("c", range(100)))
    plan = scheduler.plan()
    assert (plan.admitted, plan.n_cached) == ((("c", 0),), (40,))
    scheduler.remove("c")
    assert scheduler.evict() == 1
    assert scheduler.evict() == 0
    assert scheduler.evict() is None


def test_usage_and_metrics_report_cached_tokens(server):
    def post(prompt):
        body = {"prompt": prompt, "max_tokens": 4, "temperature": 0}
        return httpx.post(server.url + "/v1/completions", json=body).json()

    first, again = post(SYSTEM), post(SYSTEM)
    n = again["usage"]["prompt_tokens"]
    assert first["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert again["usage"]["prompt_tokens_details"] == {"cached_tokens": n - 1}
    assert first["choices"] == again["choices"]
    assert server.metrics()["slm_prompt_tokens_cached_total"] == n - 1
    # A seed changes nothing of that; who wants the same bits again leaves the cache out.
    seeded = {"max_tokens": 4, "seed": 1}
    for path, more in (("/v1/completions", {"prompt": SYSTEM}), ("/v1/chat/completions", {"messages": MESSAGES})):
        for _ in range(2):
            body = {**more, **seeded, "cache_prompt": False}
            usage = httpx.post(server.url + path, json=body).json()["usage"]
            assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
        usage = httpx.post(server.url + path, json={**more, **seeded}).json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] > 0


CONVERSATIONS = [SYSTEM * 6 + "one", SYSTEM * 6 + "two", SYSTEM * 6 + "three"]


@pytest.mark.parametrize("arch", ["lfm2", "gemma3"])
def test_a_model_that_cannot_be_cut_back_goes_back_to_states_that_were_kept(tmp_path, arch):
    """A turn that follows, the same prompt again, and another question under a system message that two have had."""
    shape = {"seq_len": 512, "n_layers": 4} if arch == "lfm2" else {
        "tie_embeddings": True, "n_layers": 3, "sliding_window": 12, "rope_theta": 1e6,
        "local_layers": (True, False, True), "seq_len": 512,
    }  # fmt: skip
    path = tiny_checkpoint.gguf_file(tmp_path / "m.gguf", arch=arch, **shape)
    plain = engine(path, slots=1, prefix_cache=False)
    one = engine(path, slots=1, ubatch=16, batch=64)
    tokens = one._model.tokenize(CONVERSATIONS[0], add_special=True, parse_special=False)
    assert len(tokens) > 256, "or llama.cpp would keep more than the window"

    def both(key, prompt, **more):
        expected = run(plain, ask(key, prompt, max_tokens=40, **more))[key][0]
        found, cached = run(one, ask(key, prompt, max_tokens=40, **more))[key]
        assert found == expected, key
        return found, cached

    reply, cached = both("first", CONVERSATIONS[0])
    assert cached == 0
    # A state belongs to the last token; a window's keys and values stay until others need their cells.
    assert bool(one._runner._cut_anywhere) == (arch == "gemma3")
    # The next turn: the prompt, and what the reply becomes in it, which need not be what the slot holds.
    _, cached = both("next", CONVERSATIONS[0] + " and then " + reply)
    assert cached >= len(tokens) - 4
    _, cached = both("again", CONVERSATIONS[0])
    assert cached >= len(tokens) - 4
    both("other question", CONVERSATIONS[1])
    _, cached = both("third question", CONVERSATIONS[2])
    assert cached >= len(tokens) - 8, "the state was kept where the second departed from the first"
    # In random order, with several slots and cancels.
    many = engine(path, slots=3, ubatch=16, batch=64)
    rng, texts = random.Random(5), {}
    for i in range(12):
        prompt = rng.choice([*CONVERSATIONS, SYSTEM, CONVERSATIONS[0] + " and then more"])
        if prompt not in texts:
            texts[prompt] = run(plain, ask("p", prompt, max_tokens=12))["p"][0]
        if rng.random() < 0.3:
            many.handle(ask("gone", prompt, max_tokens=50))
            for _ in range(rng.randrange(1, 9)):
                many.step()
            many.handle(Cancel(id="gone"))
        assert run(many, ask(str(i), prompt, max_tokens=12))[str(i)][0] == texts[prompt]
    for each in (plain, one, many):
        each.close()
