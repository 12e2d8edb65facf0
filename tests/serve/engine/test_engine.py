import dataclasses
import math
import time

import numpy as np
import pytest

from slm.llama.context import Batch, Context
from slm.llama.errors import LlamaError
from slm.llama.model import Model
from slm.serve.engine.config import EngineConfig
from slm.serve.engine.engine import Engine
from slm.serve.engine.protocol import (
    Cancel,
    Delta,
    Detokenize,
    Failure,
    Generate,
    PrefillDone,
    SamplingParams,
    Tokenize,
)

GREEDY = SamplingParams(temperature=0)
PROMPTS = ["once upon a time", "the old fox", "hello", "a red boat in the river " * 12, "x"]


def engine(path, **more):
    return Engine(EngineConfig(model_path=path, threads=1, **more))


def drain(engine, requests, per_step=None):
    """Runs to the end; request id -> (text, finish, all events)."""
    events = {request.id: [] for request in requests}
    pending = list(requests)
    while pending or engine.busy:
        for request in [pending.pop(0) for _ in range(min(per_step or len(pending), len(pending)))]:
            for event in engine.handle(request):
                events[event.id].append(event)
        for event in engine.step():
            events[event.id].append(event)
    out = {}
    for key, list_ in events.items():
        deltas = [each for each in list_ if isinstance(each, Delta)]
        out[key] = ("".join(d.text for d in deltas), deltas[-1].finish if deltas else None, list_)
    return out


def requests(sampling=GREEDY, **more):
    more = {"max_tokens": 24, **more}
    return [Generate(id=str(i), prompt=p, sampling=sampling, **more) for i, p in enumerate(PROMPTS)]


@pytest.fixture(scope="module")
def serial(tiny_path):
    one = engine(tiny_path, slots=1)
    return {r.id: drain(one, [r])[r.id][0] for r in requests()}


def test_greedy_text_is_the_argmax_of_the_model(tiny_path, serial):
    with Model(tiny_path) as model, Context(model, n_ctx=512, n_threads=1) as context:
        ids = model.tokenize(PROMPTS[0], add_special=True, parse_special=False)
        out, batch = [], Batch(64)
        i = batch.extend(ids, 0, 0, True)
        for step in range(24):
            context.decode(batch)
            out.append(int(context.logits(i).argmax()))
            batch.clear()
            i = batch.add(out[-1], len(ids) + step, 0, True)
        text = b"".join(model.token_to_piece(token) for token in out).decode("utf-8", "replace")
    assert serial["0"] == text


@pytest.mark.parametrize("per_step", [1, None])
def test_together_equals_one_by_one(tiny_path, serial, per_step):
    many = engine(tiny_path, slots=4, prefill_chunk=32, batch=64, ubatch=64)
    out = drain(many, requests(), per_step)
    assert {key: value[0] for key, value in out.items()} == serial
    assert all(value[1] == "length" for value in out.values())


def test_a_full_cache_preempts_and_nobody_notices(tiny_path):
    asked = [Generate(id=str(i), prompt=p * 6, sampling=GREEDY, max_tokens=150) for i, p in enumerate(PROMPTS[:3])]
    one = engine(tiny_path, slots=1)
    expected = {r.id: drain(one, [r])[r.id][0] for r in asked}
    # Room for one whole context only: three of these cannot stay side by side.
    tight = engine(tiny_path, slots=3, context=256, kv_tokens=256)
    out = drain(tight, asked)
    assert tight.n_preempted > 0
    assert {key: value[0] for key, value in out.items()} == expected


def test_seeds_repeat(tiny_path):
    warm = SamplingParams(temperature=1.2, top_k=50, top_p=0.95, min_p=0.01, typical_p=0.99, seed=11)
    one = engine(tiny_path)
    first = {key: value[0] for key, value in drain(one, requests(warm)).items()}
    again = {key: value[0] for key, value in drain(one, requests(warm)).items()}
    other = {key: value[0] for key, value in drain(one, requests(dataclasses.replace(warm, seed=12))).items()}
    assert first == again
    assert first != other


def test_stop_strings_across_token_borders(tiny_path, serial):
    # The engine must stop inside the text it would have made, wherever its tokens end.
    text = serial["0"]
    for start in range(1, len(text) - 3):
        stop = text[start : start + 3]
        at = text.index(stop)
        (out,) = drain(engine_of(tiny_path), [dataclasses.replace(requests()[0], stop=(stop,))]).values()
        assert (out[0], out[1]) == (text[:at], "stop")


_engines = {}


def engine_of(path):
    return _engines.setdefault(path, engine(path))


def test_end_of_text_stops_and_ignore_eos_goes_on(tiny_path):
    one = engine_of(tiny_path)
    eos = one.info.n_vocab - 1
    forced = SamplingParams(temperature=0, logit_bias=((eos, 1e4),))
    request = Generate(id="a", prompt="x", sampling=forced, max_tokens=5)
    text, finish, events = drain(one, [request])["a"]
    assert (text, finish, events[-1].completion_tokens) == ("", "stop", 1)
    ignoring = dataclasses.replace(request, sampling=SamplingParams(temperature=0, ignore_eos=True))
    assert drain(one, [ignoring])["a"][1] == "length"


def test_ignore_eos_bans_every_token_that_ends_a_text(chat_path):
    """This model has one for the text and one for a turn, and each is by far the likeliest here."""
    one = engine_of(chat_path)
    ends = one._model.eog_tokens
    assert len(ends) == 2
    for likely in ends:
        sampling = SamplingParams(temperature=0, logit_bias=((likely, 1e4),), ignore_eos=True)
        request = Generate(id="a", prompt="x", sampling=sampling, max_tokens=5, top_logprobs=0)
        _, finish, events = drain(one, [request])["a"]
        tokens = [entry.token for event in events if isinstance(event, Delta) for entry in event.logprobs]
        assert (finish, len(tokens)) == ("length", 5)
        assert not set(tokens) & set(ends)


def test_logprobs_and_echo_agree_with_the_logits(tiny_path):
    one = engine_of(tiny_path)
    request = Generate(id="a", prompt=PROMPTS[0], sampling=GREEDY, max_tokens=6, top_logprobs=3, echo=True)
    _, _, events = drain(one, [request])["a"]
    prompted = events[0]
    assert isinstance(prompted, PrefillDone)
    assert prompted.text == PROMPTS[0]
    entries = [e for event in events if isinstance(event, Delta) for e in event.logprobs]
    assert len(entries) == 6
    with Model(tiny_path) as model, Context(model, n_ctx=256, n_threads=1) as context:
        ids = [e.token for e in prompted.logprobs]
        assert ids == model.tokenize(PROMPTS[0], add_special=True, parse_special=False)
        batch = Batch(64)
        batch.extend(ids + [e.token for e in entries], 0, 0, True, every=True)
        context.decode(batch)
        logits = context.logits_all(len(batch)).astype(np.float64)
    reference = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert prompted.logprobs[0].logprob is None
    for i, entry in enumerate([*prompted.logprobs[1:], *entries]):
        assert math.isclose(entry.logprob, reference[i, entry.token], abs_tol=2e-2)
        assert len(entry.top) == 3
        assert [value for _, _, value in entry.top] == sorted((v for _, _, v in entry.top), reverse=True)
    for entry in entries:  # greedy: the pick is the likeliest
        assert entry.top[0][0] == entry.token
    assert [e.offset for e in prompted.logprobs] == sorted(e.offset for e in prompted.logprobs)
    for entry in prompted.logprobs:
        piece = entry.piece.decode()
        assert PROMPTS[0][entry.offset : entry.offset + len(piece)] == piece


def test_prompt_only(tiny_path):
    request = Generate(id="a", prompt=PROMPTS[3], sampling=GREEDY, max_tokens=0, top_logprobs=0, echo=True)
    text, finish, events = drain(engine_of(tiny_path), [request])["a"]
    assert (text, finish, events[-1].completion_tokens) == ("", "length", 0)
    assert len(events[0].logprobs) == events[0].prompt_tokens


def test_context_limits(tiny_path):
    one = engine_of(tiny_path)
    too_long = Generate(id="a", prompt=(5,) * 512, sampling=GREEDY)
    (failure,) = one.handle(too_long)
    assert isinstance(failure, Failure)
    assert failure.code == "context_length_exceeded"
    assert "512" in failure.message
    fits = Generate(id="b", prompt=(5,) * 500, sampling=SamplingParams(ignore_eos=True), max_tokens=None)
    _, finish, events = drain(one, [fits])["b"]
    assert (finish, events[-1].completion_tokens) == ("length", 12)


def test_bad_tokens_fail_alone(tiny_path):
    one = engine_of(tiny_path)
    for bad in (
        Generate(id="a", prompt=(10_000,)),
        Generate(id="a", prompt="x", sampling=SamplingParams(logit_bias=((10_000, 1.0),))),
        Generate(id="a", prompt="x", sampling=SamplingParams(top_p=float("nan"), temperature=float("nan"))),
        Detokenize(id="a", tokens=(-1,)),
    ):
        (failure,) = one.handle(bad)
        assert failure.code == "invalid_request"
    assert not one.busy


def test_cancel_frees_the_slot(tiny_path):
    one = engine(tiny_path, slots=1)
    one.handle(Generate(id="a", prompt="x", sampling=GREEDY, max_tokens=400))
    one.handle(Generate(id="b", prompt="y", sampling=GREEDY, max_tokens=2))
    one.step()
    one.handle(Cancel(id="a"))
    one.handle(Cancel(id="never"))
    events = []
    while one.busy:
        events += one.step()
    assert {event.id for event in events} == {"b"}
    assert events[-1].finish == "length"


def test_empty_prompt_and_tokens_there_and_back(tiny_path):
    one = engine_of(tiny_path)
    assert drain(one, [Generate(id="a", prompt="", sampling=GREEDY, max_tokens=3)])["a"][1] == "length"
    (reply,) = one.handle(Tokenize(id="t", text="hello 🙂", add_special=False, parse_special=False))
    (back,) = one.handle(Detokenize(id="d", tokens=tuple(reply.value)))
    assert back.value == "hello 🙂"


def test_a_deadline_ends_what_has_begun_and_fails_what_has_not(tiny_path):
    one = engine(tiny_path, slots=1)
    one.handle(Generate(id="a", prompt="x", sampling=SamplingParams(temperature=0, ignore_eos=True), deadline_s=0.3))
    one.handle(Generate(id="b", prompt="x", sampling=GREEDY, deadline_s=0.3))
    one.handle(Generate(id="c", prompt="x", sampling=GREEDY, max_tokens=2, deadline_s=600))
    events = one.step()
    time.sleep(0.31)
    while one.busy:
        events += one.step()
    last = {event.id: event for event in events if not isinstance(event, PrefillDone)}
    assert last["a"].finish == "length"
    assert last["a"].completion_tokens >= 1
    assert last["b"].code == "deadline_exceeded"
    assert "0.3 seconds" in last["b"].message
    assert last["c"].completion_tokens == 2
    one.close()


def test_a_failed_pass_ends_only_those_that_had_a_part_of_the_cache(tiny_path, serial, monkeypatch):
    one = engine(tiny_path, slots=2)
    decode, failed = Context.decode, []

    def fails_once(self, batch):
        if not failed:
            failed.append(batch)
            raise LlamaError("decode failed")
        decode(self, batch)

    monkeypatch.setattr(Context, "decode", fails_once)
    out = drain(one, requests())
    codes = {key: [each.code for each in events if isinstance(each, Failure)] for key, (_, _, events) in out.items()}
    assert sorted(key for key, found in codes.items() if found) == ["0", "1"]
    assert {key: out[key][0] for key in "234"} == {key: serial[key] for key in "234"}
    one.close()


def test_exact_with_a_cache_smaller_than_a_chunk_goes_on(tiny_path):
    one = engine(tiny_path, slots=1, context=64, exact=True)
    request = Generate(id="a", prompt="the old fox " * 8, sampling=GREEDY, max_tokens=8)
    for _ in one.handle(request):
        pass
    for _ in range(200):
        if not one.busy:
            break
        one.step()
    assert not one.busy
    one.close()
