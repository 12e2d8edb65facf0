"""Prompt lookup: the text is the same as without draft tokens, token for token."""

import dataclasses
import random

import pytest

from slm.serve.engine.batch_plan import Sequence
from slm.serve.engine.config import EngineConfig
from slm.serve.engine.engine import Engine
from slm.serve.engine.protocol import Cancel, Delta, Failure, Generate, SamplingParams
from slm.serve.engine.spec_decode.ngram import NgramIndex, NgramProposer
from slm.serve.engine.spec_decode.planner import Planner, StepCost
from slm.serve.grammar.forms import of_grammar

GREEDY = SamplingParams(temperature=0)
LOOP = "the red boat and the blue hat and the old fox and "
PROMPTS = [LOOP * 4, "hello", LOOP * 2 + "the red", "once upon a time there was a girl", "x"]
FREE = StepCost((1, 32), (1.0, 1.0))
"""Another row costs nothing: all draft tokens are verified."""


def engine(path, *, speculate="lookup", **more):
    # Without half precision anywhere, logits differ by 1e-6 from one shape of batch to another.
    options = {"threads": 1, "kv_type": "f32", "flash_attn": False, **more}
    # As many draft tokens as there are, whatever they cost.
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


def test_stop_strings_and_limits_inside_drafts(tiny_path, plain):
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


def test_end_of_text_inside_drafts(tiny_path):
    """What follows the end of a text in the prompt is drafted, and nothing of it comes out."""
    one = engine(tiny_path)
    eos = one.info.n_vocab - 1
    # No two of these letters make a token: the grammar leaves one way to spell the text, and then only the end.
    grammar = of_grammar('root ::= "zqjx" "!"?').text
    sampling = SamplingParams(temperature=0, grammar=grammar, logit_bias=((ord("!"), -float("inf")),))
    letters = one._model.tokenize("zqjx", add_special=False, parse_special=False)
    assert len(letters) == 4
    prompt = (*letters, eos, *letters[2:], letters[3], letters[3])
    asked = Generate(id="a", prompt=prompt, sampling=sampling, max_tokens=20, top_logprobs=0)
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


def test_a_grammar_sees_only_accepted_tokens(tiny_path, plain):
    grammar = of_grammar('root ::= ("the red " | "the blue " | "a fox ")+ "." ').text
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


def test_a_full_cache_gives_up_drafts_first_and_preempts_then(tiny_path, plain):
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


# -- the parts ---------------------------------------------------------------------------------------------


def test_the_last_occurrence_is_found_as_the_text_grows():
    tokens = [1, 2, 3, 4, 5, 1, 2, 3, 9, 8, 1, 2]
    index = NgramIndex(tokens)
    assert index.draft(4) == ((3, 9, 8, 1), 2)
    tokens.append(3)
    assert index.draft(3) == ((9, 8, 1), 3)
    tokens.append(77)
    assert index.draft(3) == ((), 0)
    tokens += [9, 8, 1]
    assert index.draft(2) == ((2, 3), 3)
    # A loop goes on.
    assert NgramIndex([7, 1, 2, 1, 2, 1, 2]).draft(5)[0] == (1, 2, 1, 2, 1)
    assert NgramIndex([5]).draft(3) == ((), 0)


def test_the_index_equals_a_search():
    rng = random.Random(3)
    tokens = [rng.randint(0, 3)]
    index = NgramIndex(tokens)
    for _ in range(300):
        tokens.append(rng.randint(0, 3))
        draft, match = index.draft(1)
        for n in (3, 2):
            found = [i for i in range(n, len(tokens)) if tokens[i - n : i] == tokens[-n:]]
            if found:
                assert draft == (tokens[found[-1]],)
                assert match >= n
                assert tokens[found[-1] - match : found[-1]] == tokens[-match:]
                break
        else:
            assert draft == ()


def test_a_sequence_that_may_not_get_drafts_gets_none():
    proposer = NgramProposer(Planner(FREE, shared=True))
    sequence = Sequence(id="a", tokens=[1, 2, 3, 1, 2], n_prompt=4, n_computed=4, slot=0)
    assert proposer.propose([sequence], {"a": 2}, 64) == {"a": (3, 1)}
    assert proposer.propose([sequence], {"a": 0}, 64) == {}
    assert proposer.propose([sequence], {}, 64) == {}
