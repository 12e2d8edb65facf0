"""Guessed tokens: the text is the same as without, token for token; and they are checked where that pays."""

import dataclasses
import random
import time

import pytest

from serve.engine.config import EngineConfig
from serve.engine.engine import Engine
from serve.engine.messages import Cancel, Delta, Failure, Generate, Prompted, SamplingParams
from serve.engine.sequence import Sequence
from serve.engine.spec_decode.planner import Acceptance, Candidate, Lookup, NgramIndex, Planner, StepCost, passes

GREEDY = SamplingParams(temperature=0)
LOOP = "the red boat and the blue hat and the old fox and "
PROMPTS = [LOOP * 4, "hello", LOOP * 2 + "the red", "once upon a time there was a girl", "x"]
FREE = StepCost((1, 32), (1.0, 1.0))
"""A row more costs nothing: as many guesses are checked as there are."""


def engine(path, *, speculate="lookup", **more):
    # Without half precision anywhere, logits differ by 1e-6 from one shape of batch to another.
    options = {"threads": 1, "kv_type": "f32", "flash_attn": False, **more}
    # As many guesses as there are, whatever they cost.
    return Engine(EngineConfig(model_path=path, speculate=speculate, draft_tokens=16, **options))


def run(engine, requests):
    """id -> (text, finish, logprobs, last event)"""
    events = [event for request in requests for event in engine.handle(request)]
    while engine.busy:
        events += engine.step()
    assert not any(isinstance(event, Failure) for event in events), events
    out = {}
    for request in requests:
        deltas = [event for event in events if isinstance(event, Delta) and event.id == request.id]
        logprobs = [(each.token, each.offset) for delta in deltas for each in delta.logprobs]
        out[request.id] = ("".join(d.text for d in deltas), deltas[-1].finish, logprobs, deltas[-1])
    return out


def requests(sampling=GREEDY, **more):
    more = {"max_tokens": 60, **more}
    return [Generate(id=str(i), prompt=prompt, sampling=sampling, **more) for i, prompt in enumerate(PROMPTS)]


def texts(out):
    return {key: value[:3] for key, value in out.items()}


@pytest.fixture(scope="module")
def plain(tiny_path):
    one = engine(tiny_path, speculate="none", slots=1, prefix_cache=False)
    yield one
    one.close()


OPTIONS = [{}, {"slots": 1}, {"slots": 8}, {"kv_tokens": 1024}, {"batch": 16, "ubatch": 16}, {"prefix_cache": False}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_greedy_text_is_the_same(tiny_path, plain, options):
    expected = texts(run(plain, requests(top_logprobs=1)))
    one = engine(tiny_path, **options)
    out = run(one, requests(top_logprobs=1))
    assert texts(out) == expected
    # A loop of the model's own is found, too.
    last = [value[3] for value in out.values()]
    assert sum(each.accepted_tokens for each in last) > 20
    assert all(each.accepted_tokens <= each.drafted_tokens for each in last)
    # Whatever the cache holds is what the sequences hold: the next ones begin with it.
    again = run(one, requests(top_logprobs=1))
    assert texts(again) == expected
    one.close()


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=0.3, seed=5),
        SamplingParams(temperature=1.0, top_k=40, top_p=0.9, min_p=0.02, seed=9),
        SamplingParams(temperature=0.2, repeat_penalty=1.1, frequency_penalty=0.3, seed=1),
        SamplingParams(temperature=0, logit_bias=((60, 2.0), (70, float("-inf")))),
    ],
)
def test_the_chain_draws_as_it_would_without(tiny_path, plain, sampling):
    """One draw per token, from the same logits: the same seed gives the same text."""
    expected = texts(run(plain, requests(sampling)))
    one = engine(tiny_path)
    assert texts(run(one, requests(sampling))) == expected
    one.close()


def test_stop_strings_and_limits_inside_guesses(tiny_path, plain):
    one = engine(tiny_path)
    text = run(plain, requests()[:1])["0"][0]
    for start in range(0, len(text) - 3, 5):
        (asked,) = [dataclasses.replace(requests()[0], stop=(text[start : start + 3],), top_logprobs=0)]
        assert texts(run(one, [asked])) == texts(run(plain, [asked]))
    for limit in range(1, 30, 3):
        (asked,) = [dataclasses.replace(requests()[0], max_tokens=limit)]
        (out,) = run(one, [asked]).values()
        assert out[3].completion_tokens == limit
        assert texts({"0": out}) == texts(run(plain, [asked]))
    one.close()


def test_end_of_text_inside_guesses(tiny_path):
    """What follows the end of a text in the prompt is guessed, and nothing of it comes out."""
    one = engine(tiny_path)
    eos = one.info.n_vocab - 1
    # No two of these letters make a token: the grammar leaves one way to spell the text, and then only the end.
    sampling = SamplingParams(temperature=0, grammar='root ::= "zqjx"')
    letters = one._model.tokenize("zqjx", add_special=False, parse_special=False)
    assert len(letters) == 4
    prompt = (*letters, eos, *letters[2:], letters[3], letters[3])
    asked = Generate(id="a", prompt=prompt, sampling=sampling, max_tokens=20)
    (out,) = run(one, [asked]).values()
    assert (out[0], out[1], out[3].completion_tokens) == ("zqjx", "stop", 5)
    assert out[3].drafted_tokens > out[3].accepted_tokens == 3
    one.close()


def test_a_context_is_used_to_its_end(tiny_path, plain):
    prompt = (5, 6, 7) * 160
    asked = Generate(id="a", prompt=prompt, sampling=SamplingParams(temperature=0, ignore_eos=True))
    one = engine(tiny_path, slots=1)
    (out,) = run(one, [asked]).values()
    assert out[3].completion_tokens == 512 - len(prompt)
    assert out[3].accepted_tokens > 0
    assert texts({"a": out}) == texts(run(plain, [asked]))
    one.close()


def test_a_grammar_sees_only_what_was_taken(tiny_path, plain):
    grammar = 'root ::= ("the red " | "the blue " | "a fox ")+ "." '
    asked = requests(SamplingParams(temperature=0, grammar=grammar), top_logprobs=0)
    one = engine(tiny_path)
    out = run(one, asked)
    assert texts(out) == texts(run(plain, asked))
    assert sum(value[3].accepted_tokens for value in out.values()) > 0
    for text, *_ in out.values():
        assert not text.replace("the red ", "").replace("the blue ", "").replace("a fox ", "").rstrip("thefoxrdblua .")
    one.close()


def test_a_request_may_do_without(tiny_path):
    one = engine(tiny_path)
    assert all(value[3].drafted_tokens == 0 for value in run(one, requests(speculate=False)).values())
    one.close()


def test_a_full_cache_gives_up_guesses_first_and_preempts_then(tiny_path, plain):
    asked = [Generate(id=str(i), prompt=p, sampling=GREEDY, max_tokens=140) for i, p in enumerate(PROMPTS[:4])]
    expected = texts(run(plain, asked))
    tight = engine(tiny_path, slots=4, context=256, kv_tokens=256)
    assert texts(run(tight, asked)) == expected
    assert tight.n_preempted > 0
    tight.close()


@pytest.mark.parametrize("options", [{"slots": 3}, {"slots": 3, "kv_tokens": 700, "context": 512}], ids=str)
def test_random_traffic_with_cancels(tiny_path, plain, options):
    rng = random.Random(2)
    one = engine(tiny_path, batch=64, ubatch=64, prefill_chunk=32, **options)
    asked, events = {}, []
    for i in range(50):
        request = Generate(
            id=str(i),
            prompt=rng.choice(PROMPTS) + rng.choice(["", LOOP, " hello"]),
            sampling=SamplingParams(temperature=rng.choice([0, 0.5]), seed=i),
            max_tokens=rng.randint(1, 40),
            stop=rng.choice([(), ("zz",), ("e",)]),
            speculate=rng.random() < 0.8,
        )
        asked[request.id] = request
        events += one.handle(request)
        for _ in range(rng.randint(0, 6)):
            events += one.step()
        if rng.random() < 0.2:
            gone = rng.choice(list(asked))
            one.handle(Cancel(id=gone))
            del asked[gone]
    while one.busy:
        events += one.step()
    found = dict.fromkeys(asked, "")
    for event in events:
        assert not isinstance(event, Failure)
        if isinstance(event, Delta) and event.id in found:
            found[event.id] += event.text
    assert found == {key: run(plain, [request])[key][0] for key, request in asked.items()}
    assert one.stats.running == one.stats.waiting == one.stats.kv_used == 0
    one.close()


def test_the_cost_is_measured(tiny_path):
    one = engine(tiny_path, speculate="none")
    cost = one._runner.step_cost()
    assert 0 < cost(1) < cost(32)
    assert cost(64) > cost(32)
    one.close()


def test_a_deadline_ends_what_has_begun_and_fails_what_has_not(tiny_path):
    one = engine(tiny_path, slots=1)
    one.handle(Generate(id="a", prompt="x", sampling=SamplingParams(temperature=0, ignore_eos=True), deadline_s=0.3))
    one.handle(Generate(id="b", prompt="x", sampling=GREEDY, deadline_s=0.3))
    one.handle(Generate(id="c", prompt="x", sampling=GREEDY, max_tokens=2, deadline_s=600))
    events = one.step()
    time.sleep(0.31)
    while one.busy:
        events += one.step()
    last = {event.id: event for event in events if not isinstance(event, Prompted)}
    assert last["a"].finish == "length"
    assert last["a"].completion_tokens >= 1
    assert last["b"].code == "deadline_exceeded"
    assert "0.3 seconds" in last["b"].message
    assert last["c"].completion_tokens == 2
    one.close()


# -- the parts ---------------------------------------------------------------------------------------------


def test_the_last_occurrence_is_found_as_the_text_grows():
    tokens = [1, 2, 3, 4, 5, 1, 2, 3, 9, 8, 1, 2]
    index = NgramIndex(tokens)
    assert index.guess(4) == ((3, 9, 8, 1), 2)
    tokens.append(3)
    assert index.guess(3) == ((9, 8, 1), 3)
    tokens.append(77)
    assert index.guess(3) == ((), 0)
    tokens += [9, 8, 1]
    assert index.guess(2) == ((2, 3), 3)
    # A loop goes on.
    assert NgramIndex([7, 1, 2, 1, 2, 1, 2]).guess(5)[0] == (1, 2, 1, 2, 1)
    assert NgramIndex([5]).guess(3) == ((), 0)


def test_the_index_equals_a_search():
    rng = random.Random(3)
    tokens = [rng.randint(0, 3)]
    index = NgramIndex(tokens)
    for _ in range(300):
        tokens.append(rng.randint(0, 3))
        guess, match = index.guess(1)
        for n in (3, 2):
            found = [i for i in range(n, len(tokens)) if tokens[i - n : i] == tokens[-n:]]
            if found:
                assert guess == (tokens[found[-1]],)
                assert match >= n
                assert tokens[found[-1] - match : found[-1]] == tokens[-match:]
                break
        else:
            assert guess == ()


def test_passes_are_as_llama_cpp_splits():
    assert passes({0: 1, 1: 1, 2: 1}, shared=False) == [3]
    assert passes({0: 4, 1: 4}, shared=False) == [8]
    assert passes({0: 1, 1: 4, 2: 4}, shared=False) == [3, 6]
    assert passes({0: 4, 1: 1, 2: 4}, shared=False) == [3, 3, 3]
    assert passes({0: 2, 2: 2}, shared=False) == [2, 2]
    assert passes({0: 2, 2: 3}, shared=True) == [5]


def test_guesses_are_checked_where_that_pays():
    flat, steep = StepCost((1, 32), (1.0, 2.0)), StepCost((1, 32), (1.0, 32.0))
    sure, doubtful = Candidate(0, 0.95, 31), Candidate(0, 0.3, 31)
    assert Planner(flat, shared=False).choose([0], [sure], 512)[0] > 7
    assert 0 < Planner(flat, shared=False).choose([0], [doubtful], 512)[0] <= 3
    assert Planner(steep, shared=False).choose([0], [sure], 512) == {}
    # Never more than there is room for, or than are wanted.
    assert Planner(flat, shared=False).choose([0], [sure], 5)[0] <= 4
    assert Planner(flat, shared=False).choose([0], [Candidate(0, 0.95, 2)], 512)[0] == 2
    # What making the guesses takes counts, too.
    assert Planner(flat, shared=False, guess_cost=lambda sequences, n: 1.0 * n).choose([0], [sure], 512) == {}


def test_many_sequences_get_fewer():
    cost = StepCost((1, 8, 64), (1.0, 1.5, 12.0))
    planner = Planner(cost, shared=True)
    alone = planner.choose([0], [Candidate(0, 0.8, 31)], 512)
    crowd = planner.choose(list(range(16)), [Candidate(slot, 0.8, 31) for slot in range(16)], 512)
    assert sum(alone.values()) > max(crowd.values(), default=0)


def test_acceptance_follows_what_happens_and_recovers():
    acceptance = Acceptance()
    before = acceptance.rate(10)
    for _ in range(10):
        acceptance.learn(10, 7, 0)
    low = acceptance.rate(10)
    assert low < 0.1 < before
    for _ in range(300):
        acceptance.relax(10)
    assert acceptance.rate(10) > 0.5
    for _ in range(10):
        acceptance.learn(10, 7, 7)
    assert acceptance.rate(10) > 0.95


def test_a_sequence_that_may_not_get_guesses_gets_none():
    lookup = Lookup(Planner(FREE, shared=True))
    sequence = Sequence(id="a", tokens=[1, 2, 3, 1, 2], n_prompt=4, n_computed=4, slot=0)
    assert lookup.propose([sequence], {"a": 2}, 64) == {"a": (3, 1)}
    assert lookup.propose([sequence], {"a": 0}, 64) == {}
    assert lookup.propose([sequence], {}, 64) == {}
