import numpy as np
import pytest

from slm.llama.context import Batch, Context
from slm.llama.model import Model
from slm.serve.engine.generation import make_sampler
from slm.serve.engine.protocol import SamplingParams
from slm.serve.engine.tokenize import log_probabilities, most_likely


@pytest.fixture(scope="module")
def model(tiny_path):
    with Model(tiny_path) as model:
        yield model


def pick(model, context, params, prompt="once upon a time", mask=None):
    """One token, and the logits that it was drawn from."""
    ids = model.tokenize(prompt, add_special=False, parse_special=False)
    context.clear()
    batch = Batch(64)
    index = batch.extend(ids, 0, 0, True)
    context.decode(batch)
    sampler = make_sampler(model, params, ids, context=64)
    token = sampler.sample(context, index, mask)
    sampler.close()
    return token, context.logits(index)


def draws(model, params, n=200, **more):
    from dataclasses import replace

    with Context(model, n_ctx=256, n_threads=1) as context:
        return [pick(model, context, replace(params, seed=seed), **more) for seed in range(n)]


def test_typical_sampling_with_a_ban_draws_from_numbers_not_nan(model):
    """Where a banned token has no probability, llama.cpp's sums are NaN, and it would keep another set of tokens."""
    banned = range(0, 256, 2)
    tokens = draws(model, SamplingParams(typical_p=0.3, logit_bias=tuple((t, -np.inf) for t in banned)))
    logits = tokens[0][1].astype(np.float64)
    logits[list(banned)] = -np.inf
    p = np.exp(logits - logits.max())
    p /= p.sum()
    possible = np.flatnonzero(p)
    surprise = -np.log(p[possible])
    entropy = (p[possible] * surprise).sum()
    order = possible[np.argsort(abs(surprise - entropy), kind="stable")]
    kept = order[: int(np.searchsorted(np.cumsum(p[order]), 0.3)) + 1]
    assert {token for token, _ in tokens} <= set(kept.tolist())


def test_top_k_of_a_grammars_tokens(model):
    allowed = [t for t, piece in enumerate(model.spellings) if piece[:1] in (b"b", b"c", b"d", b"e", b"f")]
    bits = np.zeros(32 * (model.n_vocab // 32 + 1), np.uint8)
    bits[allowed] = 1
    tokens = draws(model, SamplingParams(top_k=2), 60, mask=np.packbits(bits, bitorder="little").view(np.uint32))
    best = sorted(allowed, key=lambda token: -tokens[0][1][token])
    assert {token for token, _ in tokens} == set(best[:2])


def test_log_probabilities():
    logits = np.array([[1.0, 2.0, 3.0], [1000.0, 0.0, -1000.0]], np.float32)
    rows = log_probabilities(logits)
    np.testing.assert_allclose(np.exp(rows).sum(axis=1), 1)
    assert rows[1, 0] == 0
    assert most_likely(rows[0], 2) == [2, 1]
    assert most_likely(rows[0], 9) == [2, 1, 0]
    assert most_likely(np.zeros(4), 0) == []
