"""Constrained sequences in the engine: forced tokens, late masks, grammars that cost too much."""

import itertools
import json
import re
import threading

import pytest
from llguidance import LLParserLimits

from slm.serve.engine.config import EngineConfig
from slm.serve.engine.engine import Engine
from slm.serve.engine.protocol import Cancel, Delta, Failure, Generate, SamplingParams
from slm.serve.grammar import constraints
from slm.serve.grammar.constraints import Constraint
from slm.serve.grammar.forms import as_text, of_choice, of_grammar, of_json, of_regex

SCHEMA = {"type": "object", "properties": {"first_name": {"enum": ["Ada", "Bo"]}, "is_member": {"type": "boolean"}},
          "required": ["first_name", "is_member"]}  # fmt: skip
JSON = of_json(SCHEMA).text


@pytest.fixture(scope="module")
def engine(tiny_path):
    engine = Engine(EngineConfig(model_path=tiny_path, threads=1, slots=3))
    yield engine
    engine.close()


def ask(name, grammar, **more):
    sampling = {"seed": 1, "grammar": grammar, **more.pop("sampling", {})}
    return Generate(id=name, prompt="the", sampling=SamplingParams(**sampling), **{"max_tokens": 120, **more})


def run(engine, asked):
    """Text, last event and number of steps by id; a failure instead where there is one."""
    texts, last, steps = {}, {}, 0
    for each in asked:
        assert engine.handle(each) == []
    while engine.busy:
        steps += 1
        for event in engine.step():
            if isinstance(event, Delta):
                texts[event.id] = texts.get(event.id, "") + event.text
            if isinstance(event, Delta | Failure):
                last[event.id] = event
    return {name: (texts.get(name, ""), event) for name, event in last.items()}, steps


def test_forced_tokens_are_computed_together(engine):
    """Far fewer steps than tokens, and the same ids as by llama.cpp's tokenizer."""
    out, steps = run(engine, [ask("a", JSON)])
    text, event = out["a"]
    assert json.loads(text).keys() == {"first_name", "is_member"}
    assert event.finish == "stop"
    assert event.completion_tokens > 20
    assert steps < event.completion_tokens
    same = engine._model.tokenize(text, add_special=False, parse_special=False)
    assert event.completion_tokens <= len(same) + 12  # what is drawn may be spelled by shorter tokens


def test_the_vocabulary_is_read_before_the_first_grammar(tiny_path):
    """It takes most of a second with 150,000 ids."""
    engine = Engine(EngineConfig(model_path=tiny_path, threads=1, slots=1))
    engine.warm()
    engine._constraints._compiling().submit(int).result(timeout=60)  # its thread works in order
    read = "grammar_tokenizer" in vars(engine._model)
    engine.close()
    assert read


def test_the_masks_of_a_step_are_handed_over_together(engine, monkeypatch):
    """To hand a mask over to its thread costs more than most masks."""
    handed, compute = [], constraints.compute
    monkeypatch.setattr(constraints, "compute", lambda each, thread: (handed.append(len(each)), compute(each, thread)))
    run(engine, [ask(str(i), of_regex("[a-f]{9}").text) for i in range(3)])
    assert max(handed) == 3


def test_with_log_probabilities_every_token_is_computed(engine):
    out, _ = run(engine, [ask("a", of_choice(["abcabcabc"]).text, top_logprobs=1)])
    assert (out["a"][0], len(out["a"][1].logprobs) > 0) == ("abcabcabc", True)


@pytest.mark.parametrize("max_tokens", [1, 3, 9])
def test_forced_tokens_keep_to_max_tokens_and_stop_strings(engine, max_tokens):
    out, _ = run(engine, [ask("a", JSON, max_tokens=max_tokens), ask("b", JSON, stop=("_name",))])
    assert (out["a"][1].finish, out["a"][1].completion_tokens) == ("length", max_tokens)
    assert (out["b"][0], out["b"][1].stop_string) == ('{"first', "_name")


def test_side_by_side_and_in_one_cache_the_texts_are_the_same(engine, tiny_path):
    asked = [ask(str(i), grammar, sampling={"seed": i, "temperature": 0})
             for i, grammar in enumerate([JSON, of_regex("[a-f]{9}").text, None])]  # fmt: skip
    alone = {each.id: run(engine, [each])[0][each.id][0] for each in asked}
    assert {name: text for name, (text, _) in run(engine, asked)[0].items()} == alone
    shared = Engine(EngineConfig(model_path=tiny_path, threads=1, slots=3, kv_tokens=512))
    assert run(shared, asked)[0]["0"][0] == alone["0"]
    shared.close()


def test_preempted_sequences_go_on_where_they_were(tiny_path):
    tight = Engine(EngineConfig(model_path=tiny_path, threads=1, slots=3, context=256, kv_tokens=256))
    grammar = of_regex("[a-z]{200,230}").text
    out, _ = run(tight, [ask(str(i), grammar, sampling={"seed": i}, max_tokens=200) for i in range(3)])
    assert tight.n_preempted > 0
    assert all(re.fullmatch("[a-z]{200,230}", text) for text, _ in out.values())
    tight.close()


def test_penalties_and_bias_apply_to_what_fits(engine):
    text = run(engine, [ask("a", of_regex("[ab]{8}").text, sampling={"logit_bias": ((97, -float("inf")),)})])[0]["a"][0]
    assert text.count("b") == 8 or "ab" in text  # a token of both letters is another token
    out = run(engine, [ask("a", of_regex("q{6}").text, sampling={"repeat_penalty": 1.3})])[0]
    assert out["a"][0] == "qqqqqq"
    banned = tuple((token, -float("inf")) for token, piece in enumerate(engine._model.spellings) if piece[:1] == b"q")
    failed = run(engine, [ask("a", of_regex("q{6}").text, sampling={"logit_bias": banned})])[0]["a"][1]
    assert (failed.code, "no token fits" in failed.message) == ("invalid_request", True)


@pytest.mark.parametrize("late", [False, True])
def test_a_text_ends_where_its_grammar_may_but_not_before_min_tokens(engine, monkeypatch, late):
    if late:  # every other time that the engine asks
        there, wait = itertools.cycle([False, True]), Constraint.wait
        monkeypatch.setattr(
            Constraint, "wait", lambda self, timeout_s=None: wait(self) and (timeout_s is None or next(there))
        )
    ends = {"logit_bias": tuple((token, 50.0) for token in engine._model.eog_tokens)}
    grammar = of_regex("[a-z]*").text
    assert run(engine, [ask("a", grammar, sampling=ends)])[0]["a"][1].completion_tokens == 1
    text, event = run(engine, [ask("a", grammar, sampling={**ends, "min_tokens": 6})])[0]["a"]
    assert (event.finish, event.completion_tokens) == ("stop", 7)
    assert re.fullmatch("[a-z]{6,}", text)


def test_others_go_on_while_a_mask_is_late(engine, monkeypatch):
    """The engine keeps the logits and samples from them when the mask is there: the text is the same."""
    request = ask("late", of_regex("[a-f]{5}").text)
    expected = run(engine, [request])[0]["late"][0]
    free, compute = threading.Event(), Constraint._compute

    def slow(self):
        free.wait(10)
        return compute(self)

    monkeypatch.setattr(Constraint, "_compute", slow)
    assert engine.handle(request) == []
    assert engine.handle(ask("plain", None, max_tokens=30, sampling={"ignore_eos": True})) == []
    seen = []
    while not any(isinstance(event, Delta) and event.finish for event in seen):
        seen += engine.step()
    assert {event.id for event in seen if isinstance(event, Delta)} == {"plain"}
    free.set()
    text = ""
    while engine.busy:
        text += "".join(event.text for event in engine.step() if isinstance(event, Delta))
    assert text == expected


def test_a_late_sequence_can_be_cancelled(engine, monkeypatch):
    free, compute = threading.Event(), Constraint._compute
    monkeypatch.setattr(Constraint, "_compute", lambda self: (free.wait(10), compute(self))[1])
    assert engine.handle(ask("late", JSON)) == []
    for _ in range(4):
        engine.step()
    engine.handle(Cancel(id="late"))
    assert not engine.busy
    free.set()


def test_work_is_limited_not_time(engine, monkeypatch):
    """An ambiguous grammar fails at the same token whatever the machine does meanwhile."""
    grammar = as_text("start: e\ne: e e e | /[a-z ]/")
    monkeypatch.setattr(constraints, "LIMITS", LLParserLimits(max_items_in_row=60))
    ends = [run(engine, [ask("a", grammar)])[0]["a"] for _ in range(2)]
    assert ends[0][1].code == "invalid_request"
    assert "too much work" in ends[0][1].message
    assert ends[0][0] == ends[1][0] != ""


def test_a_grammar_is_compiled_once(engine):
    grammar = of_regex("once [a-c]{3}").text
    run(engine, [ask("a", grammar), ask("b", grammar)])
    assert sum(key == grammar for key in engine._constraints._compiled) == 1


def test_a_grammar_that_cannot_be_compiled_is_the_requests_fault(engine):
    failed = run(engine, [ask("a", '{"grammars": [{"lark_grammar": "start: ("}]}')])[0]["a"][1]
    assert (failed.code, "cannot be used" in failed.message) == ("invalid_request", True)


def test_characters_of_several_tokens_are_whole(engine):
    text = run(engine, [ask("a", of_grammar("root ::= [é🙂東]{6}").text)])[0]["a"][0]
    assert re.fullmatch("[é🙂東]{6}", text)
