"""A draft model: the text is the target's own whatever the draft model proposes, and another vocabulary is refused."""

import pytest

from slm.data.errors import UserError
from slm.serve.engine.config import EngineConfig
from slm.serve.engine.engine import Engine
from slm.serve.engine.protocol import Delta, Failure, Generate, SamplingParams
from tests.helpers import tiny_gguf

GREEDY = SamplingParams(temperature=0)
WARM = SamplingParams(temperature=0.4, seed=3)
PROMPTS = ["once upon a time", "hello", "the old fox and the little bird went to the river " * 3, "x", "a red boat"]
EXACT = {"threads": 1, "kv_type": "f32", "flash_attn": False}


def engine(path, draft=None, **more):
    speculate = "none" if draft is None else "draft"
    config = EngineConfig(model_path=path, speculate=speculate, draft_model=draft, draft_tokens=8, **EXACT, **more)
    return Engine(config)


def run(engine, sampling=GREEDY, n=40):
    asked = [Generate(id=str(i), prompt=p, sampling=sampling, max_tokens=n) for i, p in enumerate(PROMPTS)]
    events = [event for request in asked for event in engine.handle(request)]
    while engine.busy:
        events += engine.step()
    assert not any(isinstance(event, Failure) for event in events), events
    deltas = [event for event in events if isinstance(event, Delta)]
    texts = {r.id: "".join(d.text for d in deltas if d.id == r.id) for r in asked}
    last = [d for d in deltas if d.finish]
    return texts, sum(d.drafted_tokens for d in last), sum(d.accepted_tokens for d in last)


@pytest.fixture(scope="module")
def smaller_path(tmp_path_factory, tiny_path):
    """The same tokenizer, other weights."""
    return tiny_gguf.write(tmp_path_factory.mktemp("draft") / "smaller.gguf", n_layers=1)


@pytest.fixture(scope="module")
def plain(tiny_path):
    one = engine(tiny_path, slots=1, prefix_cache=False)
    texts = {sampling: run(one, sampling)[0] for sampling in (GREEDY, WARM)}
    one.close()
    return texts


OPTIONS = [{}, {"slots": 1}, {"kv_tokens": 700, "context": 512}, {"batch": 16, "ubatch": 16, "prefill_chunk": 8}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("same", [True, False], ids=["the model itself", "another"])
def test_the_text_is_the_targets(tiny_path, smaller_path, plain, options, same):
    one = engine(tiny_path, tiny_path if same else smaller_path, **options)
    for sampling in (GREEDY, WARM, GREEDY):
        texts, drafted, accepted = run(one, sampling)
        assert texts == plain[sampling]
        assert drafted > 0
        if same and sampling is GREEDY:
            assert accepted > 0.9 * drafted  # behind an end of text, nothing is taken
        if not same:
            assert accepted < drafted
    one.close()


def test_a_full_cache_preempts_and_nobody_notices(tiny_path, plain):
    one = engine(tiny_path, tiny_path, slots=4, context=128, kv_tokens=256)
    assert run(one, GREEDY)[0] == plain[GREEDY]
    one.close()


def test_a_draft_that_does_not_pay_is_left_alone(tiny_path, smaller_path):
    """With what it really costs: the draft is as slow as the model, and mostly wrong."""
    one = Engine(EngineConfig(model_path=tiny_path, speculate="draft", draft_model=smaller_path, **EXACT))
    _, drafted, _ = run(one, n=60)
    assert drafted < 5 * 60 / 2
    one.close()


def test_another_vocabulary_is_refused(tiny_path, chat_path):
    with pytest.raises(UserError, match="319 tokens and the model has 317; a draft must be a run with the same"):
        engine(tiny_path, chat_path)


def test_the_options_must_fit_together(tiny_path):
    with pytest.raises(UserError, match=r"name it with serve\.draft_model=PATH"):
        EngineConfig(model_path=tiny_path, speculate="draft")
    with pytest.raises(UserError, match=r"serve\.speculate=draft, which is lookup"):
        EngineConfig(model_path=tiny_path, speculate="lookup", draft_model=tiny_path)
