"""Looking at few candidates must not change what is picked."""

import numpy as np
import pytest

from serve.engine.messages import SamplingParams
from serve.engine.sampling import log_probabilities, make_sampler
from slm.llama import pick
from slm.llama.context import Batch, Context
from slm.llama.errors import LlamaError
from slm.llama.model import Model
from slm.llama.sampler import Sampler


@pytest.fixture(scope="module")
def model(tiny_path):
    with Model(tiny_path) as model:
        yield model


@pytest.fixture(scope="module")
def context(model):
    with Context(model, n_ctx=64, n_threads=1) as context:
        batch = Batch(8)
        batch.extend([5, 9, 7], 0, 0, True)
        context.decode(batch)
        yield context


def picks(model, context, params, n=40):
    sampler = make_sampler(model, params, [], context=64)
    try:
        return [sampler.sample(context, 2) for _ in range(n)]
    finally:
        sampler.close()


BAN = tuple((token, -np.inf) for token in range(0, 256, 3))


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.0, logit_bias=((7, 50.0),)),
        SamplingParams(temperature=0.0, logit_bias=BAN),
        SamplingParams(top_k=5),
        SamplingParams(top_k=40, top_p=0.9, min_p=0.01, temperature=0.7),
        SamplingParams(top_k=3, logit_bias=((7, 50.0), (8, 49.0))),
        SamplingParams(top_p=0.8, temperature=1.3),
        SamplingParams(top_p=0.9, min_p=0.1, logit_bias=BAN),
        SamplingParams(min_p=0.05),
        SamplingParams(repeat_penalty=1.3, top_k=20),
        SamplingParams(typical_p=0.7),
    ],
    ids=str,
)
def test_the_same_tokens_as_llama_cpps_chain_on_all(model, context, params, monkeypatch):
    ours = picks(model, context, params)
    monkeypatch.setattr(pick, "_library", lambda: None)
    assert picks(model, context, params) == ours
    monkeypatch.setattr(Sampler, "_sample_narrowed", lambda *_: None)
    assert picks(model, context, params) == ours


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_the_whole_distribution_is_drawn_from(model, context, temperature):
    n = 4000
    drawn = np.bincount(
        picks(model, context, SamplingParams(temperature=temperature, seed=3), n), minlength=model.n_vocab
    )
    p = np.exp(log_probabilities(context.logits(2) / temperature))
    expected = n * p
    # Pearson's statistic over tokens expected often enough, the others together.
    often = expected >= 5
    observed = np.append(drawn[often], drawn[~often].sum())
    expected = np.append(expected[often], expected[~often].sum())
    statistic = ((observed - expected) ** 2 / np.maximum(expected, 1e-9)).sum()
    freedom = len(expected) - 1
    assert statistic < freedom + 6 * np.sqrt(2 * freedom) + 6


def test_banned_tokens_are_never_drawn(model, context):
    assert not {token for token, _ in BAN} & set(picks(model, context, SamplingParams(logit_bias=BAN), 500))


def test_logits_that_are_not_numbers_are_refused(model, context, monkeypatch):
    row = np.full(model.n_vocab, np.nan, np.float32)
    monkeypatch.setattr(context, "row", lambda _: row)
    monkeypatch.setattr(context, "row_address", lambda _: row.ctypes.data)
    for library in (pick._library(), None):
        monkeypatch.setattr(pick, "_library", lambda library=library: library)
        with pytest.raises(LlamaError, match="not numbers"):
            picks(model, context, SamplingParams(), 1)
