"""When reasoning has to end."""

import dataclasses

import pytest

from slm.serve.engine.config import EngineConfig
from slm.serve.engine.engine import Engine
from slm.serve.engine.protocol import Delta, Generate, SamplingParams, ThoughtLimit, Tokenize
from slm.serve.engine.thought import Thought

GREEDY = SamplingParams(temperature=0, ignore_eos=True)


def due_after(texts, limit, *, opened):
    thought = Thought(limit, opened=opened, begin="<think>", ends=("</think>",), end_tokens=[7, 8])
    for n in range(len(texts) + 1):
        if thought.is_due:
            assert thought.cut() == [7, 8]
            assert thought.was_cut
            assert not thought.is_due, "once"
            return n
        if n < len(texts):
            thought.push(texts[n])
    return None


@pytest.mark.parametrize(
    ("texts", "limit", "opened", "expected"),
    [
        (["a", "b", "c"], 2, True, 2),
        (["a", "b", "c"], 0, True, 0),
        (["a", "b"], 3, True, None),
        (["a", "</th", "ink>", "b", "c", "d"], 3, True, None),
        (["<think>", "a", "b"], 1, False, 2),
        (["\n<th", "ink>", "a", "b"], 1, False, 3),
        (["<think>", "a"], 0, False, 1),
        (["Hello", "<think>", "a", "b"], 1, False, None),
        (["a", "</thin", "a", "b", "c"], 4, True, 4),
    ],
)
def test_it_is_due_behind_so_many_tokens(texts, limit, opened, expected):
    assert due_after(texts, limit, opened=opened) == expected


@pytest.mark.parametrize(
    ("texts", "due"),
    [
        (["<go>", "a", "b", "<end>", "x", "<go>", "c", "d", "<end>", "<go>"], [7, 10]),
        (["x", "<go>", "a", "<end>", "<go>", "b", "<end>", "<g", "o>", "c", "d"], [10]),
        # What begins the next message ends this one, too.
        (["<go>", "a", "<next>", "b", "c", "d", "<go>", "e", "f"], [9]),
        (["<go>", "a", "<end>", "no <go", "b", "c", "d"], []),
    ],
)
def test_the_limit_holds_for_all_parts_of_a_reply(texts, due):
    thought = Thought(3, opened=False, begin="<go>", ends=("<end>", "<next>"), end_tokens=[7], again=([8], [9]))
    found = []
    for n, text in enumerate(texts, 1):
        thought.push(text)
        if thought.is_due:
            expected = [9] if found else [7]
            assert thought.cut(lambda tokens: tokens != [8]) == expected
            found.append(n)
    assert found == due


def test_nothing_is_written_that_may_not_come():
    thought = Thought(1, opened=True, begin="<go>", ends=("<end>",), end_tokens=[7])
    thought.push("a")
    assert thought.cut(lambda tokens: False) == []
    assert thought.is_due
    assert not thought.was_cut
    assert thought.cut() == [7]


def test_the_engine_ends_it_and_the_model_goes_on(tiny_path):
    one = Engine(EngineConfig(model_path=tiny_path, threads=1, slots=2))
    plain = Generate(id="plain", prompt="the old fox", max_tokens=24, sampling=GREEDY, return_tokens=True)
    end = one.handle(Tokenize(id="t", text=" river", add_special=False, parse_special=True))[0].value
    assert len(end) >= 1
    for limit, opened in ((0, True), (5, True), (5, False)):
        begin = text_of(one, plain)[:3]
        asked = ThoughtLimit(tokens=limit, opened=opened, begin=begin, ends=(" river",))
        events = run(one, dataclasses.replace(plain, thought=asked))
        text = "".join(each.text for each in events if isinstance(each, Delta))
        made = [token for each in events if isinstance(each, Delta) for token in each.tokens]
        at = next(i for i in range(len(made)) if made[i : i + len(end)] == end)
        assert limit <= at <= limit + 3, "begin may be some tokens"
        assert made[:at] == tokens_of(one, plain)[:at], "until then it is the model's own"
        assert " river" in text
        # What follows is what the model says behind it.
        rest = dataclasses.replace(plain, prompt=("the old fox", *made[: at + len(end)]), max_tokens=24 - at - len(end))
        assert made[at + len(end) :] == tokens_of(one, rest)
    one.close()


def run(one, request):
    events = one.handle(request)
    while one.busy:
        events += one.step()
    return events


def tokens_of(one, request):
    return [token for each in run(one, request) if isinstance(each, Delta) for token in each.tokens]


def text_of(one, request):
    return "".join(each.text for each in run(one, request) if isinstance(each, Delta))
