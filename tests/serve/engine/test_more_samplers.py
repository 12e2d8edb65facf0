"""Samplers beyond temperature and the usual filters, each on logits that show it, and what holds a text's end back."""

import math
from collections import Counter

import numpy as np
import pytest

from slm.llama.model import Model
from slm.llama.sampler import Sampler
from slm.serve.engine.config import EngineConfig
from slm.serve.engine.engine import Engine
from slm.serve.engine.generation import make_sampler
from slm.serve.engine.protocol import Delta, Generate, SamplingParams
from tests.helpers import tiny_gguf


class Fixed:
    """A context whose only row of logits is given."""

    def __init__(self, n_vocab, **logits):
        self.values = np.full(n_vocab, -30.0, np.float32)
        for token, value in logits.items():
            self.values[int(token[1:])] = value

    def row(self, i):
        return self.values

    def row_address(self, i):
        return self.values.ctypes.data


@pytest.fixture(scope="module")
def model(tiny_path):
    with Model(tiny_path) as model:
        yield model


def everything(model):
    """The mask that allows every token."""
    return np.full((model.n_vocab + 31) // 32, 2**32 - 1, np.uint32)


def drawn(model, params, context, n=300, prompt=(1, 2)):
    """How often each token is drawn by llama.cpp's chain, which a sampler with these parameters has."""
    counts = Counter()
    for seed in range(n):
        sampler = make_sampler(model, SamplingParams(**params, seed=seed), list(prompt), context=64)
        counts[sampler._pick(context.row(0), everything(model))] += 1
        sampler.close()
    return counts


def test_top_n_sigma(model):
    # One candidate in four: the deviation is about two thirds of the distance between the two kinds.
    values = {f"t{i}": 0.0 if i % 4 else 3.0 for i in range(model.n_vocab)}
    context = Fixed(model.n_vocab, **values)
    assert any(token % 4 for token in drawn(model, {}, context))
    assert not any(token % 4 for token in drawn(model, {"top_n_sigma": 1.0}, context))


def test_xtc_leaves_out_what_is_likely(model):
    context = Fixed(model.n_vocab, t5=3.0, t6=2.5, t7=2.0)
    assert set(drawn(model, {"xtc_probability": 1.0, "xtc_threshold": 0.1}, context)) == {7}
    assert set(drawn(model, {"xtc_probability": 1.0, "xtc_threshold": 0.6}, context)) == {5, 6, 7}
    half = drawn(model, {"xtc_probability": 0.5, "xtc_threshold": 0.1}, context)
    assert 0.4 < (half[5] + half[6]) / 300 < 0.55


def test_dynamic_temperature(model):
    # Two tokens at 3:1. Little entropy of the whole vocabulary's: the temperature is near the lower end.
    context = Fixed(model.n_vocab, t5=math.log(3), t6=0.0)
    plain = drawn(model, {"temperature": 1.0}, context)
    cold = drawn(model, {"temperature": 1.0, "dynatemp_range": 0.9}, context)
    assert plain[6] > 45
    assert cold[6] < plain[6] / 2


def test_dry_ends_a_repetition(model):
    context = Fixed(model.n_vocab, t9=2.0, t4=1.0)
    loop = [7, 8, 9, 7, 8, 9, 7, 8]
    params = {"temperature": 0.0, "dry_sequence_breakers": ("zzz",)}
    assert set(drawn(model, params, context, n=1, prompt=loop)) == {9}
    assert set(drawn(model, {**params, "dry_multiplier": 1.0}, context, n=1, prompt=loop)) == {4}
    longer = {**params, "dry_multiplier": 1.0, "dry_allowed_length": 20}
    assert set(drawn(model, longer, context, n=1, prompt=loop)) == {9}


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_keeps_the_surprise_low(model, version):
    values = {f"t{i}": -i / 20 for i in range(model.n_vocab)}
    context = Fixed(model.n_vocab, **values)
    params = SamplingParams(mirostat=version, mirostat_tau=1.0, mirostat_eta=0.5, seed=1)
    sampler = make_sampler(model, params, [1], context=64)
    logp = context.values - np.log(np.exp(context.values).sum())
    surprises = []
    for _ in range(60):
        token = sampler._pick(context.row(0), everything(model))
        surprises.append(-logp[token] / math.log(2))
    sampler.close()
    plain = -(np.exp(logp) * logp).sum() / math.log(2)
    assert np.mean(surprises[30:]) < plain - 1


def test_numbers_are_checked(model):
    for wrong in ({"xtc_probability": 2.0}, {"dry_multiplier": 1.0, "dry_base": 0.5}, {"top_n_sigma": float("inf")}):
        with pytest.raises(Exception, match="must be between"):
            make_sampler(model, SamplingParams(**wrong), [1], context=64)
    assert isinstance(Sampler(model), Sampler)


def text(engine, **params):
    engine.handle(Generate(id="x", prompt="a", max_tokens=12, sampling=SamplingParams(temperature=0.0, **params)))
    deltas = []
    while engine.busy:
        deltas += [event for event in engine.step() if isinstance(event, Delta)]
    return "".join(each.text for each in deltas), deltas[-1]


def test_where_a_text_may_end(tmp_path):
    # The text goes on with b and c, and after c it would end.
    path = tiny_gguf.write(tmp_path / "ends.gguf", script={"a": "b", "b": "c", "c": tiny_gguf.EOT})
    engine = Engine(EngineConfig(model_path=path, threads=1, slots=1))
    with Model(path) as model:
        (c,) = model.tokenize("c", add_special=False, parse_special=False)
    whole, last = text(engine)
    assert (whole, last.finish, last.completion_tokens) == ("bc", "stop", 3)
    longer, last = text(engine, min_tokens=8)
    assert longer.startswith("bc")
    assert last.completion_tokens >= 8
    stopped, last = text(engine, stop_token_ids=(c,))
    assert (stopped, last.finish, last.stop_string, last.completion_tokens) == ("b", "stop", None, 2)
    held, last = text(engine, stop_token_ids=(c,), min_tokens=4)
    assert "c" not in held[:4]
    assert last.completion_tokens >= 4
    engine.close()
