import numpy as np
import pytest

from slm.llama import pick
from slm.llama.context import Batch, Context
from slm.llama.errors import LlamaError
from slm.llama.sampler import Sampler
from tests.helpers.sampler_chains import label, make_chain


def _generate(model, context, sampler, n=12):
    context.clear()
    ids = model.tokenize("once upon a time", add_special=False, parse_special=False)
    batch = Batch(64)
    i = batch.extend(ids, 0, 0, True)
    out = []
    for step in range(n):
        context.decode(batch)
        out.append(sampler.sample(context, i))
        batch.clear()
        i = batch.add(out[-1], len(ids) + step, 0, True)
    sampler.close()
    return out


def test_greedy_is_argmax_and_seeds_repeat(model, context):
    greedy = _generate(model, context, Sampler(model).greedy())
    top1 = _generate(model, context, Sampler(model).top_k(1).dist(3))
    assert greedy == top1

    def warm(seed):
        return _generate(model, context, Sampler(model).top_k(50).temperature(1.5).dist(seed))

    assert warm(1) == warm(1)
    assert warm(1) != warm(2)


def test_logit_bias_forces_and_bans(model, context):
    greedy = _generate(model, context, Sampler(model).greedy(), 1)[0]
    assert _generate(model, context, Sampler(model).logit_bias({65: 1e6}).greedy(), 4) == [65] * 4
    banned = _generate(model, context, Sampler(model).logit_bias({greedy: -float("inf")}).greedy(), 1)
    assert banned != [greedy]


def test_penalties_stop_a_repetition(model, context):
    chain = Sampler(model).logit_bias({65: 20.0, 66: 18.0})
    chain.penalties(last_n=64, repeat=1.0, frequency=0.0, presence=50.0).greedy()
    assert _generate(model, context, chain, 2) == [65, 66]


def test_a_mask_without_a_compiler(model, context, monkeypatch):
    monkeypatch.setattr(pick, "_library", lambda: None)
    mask = np.zeros(model.n_vocab // 32 + 1, np.uint32)
    mask[65 // 32] |= np.uint32(1 << 65 % 32)
    context.clear()
    batch = Batch(8)
    i = batch.extend([1, 2], 0, 0, True)
    context.decode(batch)
    for settings in ({"temperature": 0.0}, {"repeat": 1.2}, {}):
        sampler = make_chain(model, **settings)
        assert sampler.sample(context, i, mask) == 65
        sampler.close()


@pytest.mark.parametrize("value", [float("nan"), -1.0, 2.0, float("inf")])
def test_sampler_numbers_are_checked(model, value):
    chain = Sampler(model)
    for link in (chain.top_p, chain.min_p, chain.typical):
        with pytest.raises(LlamaError):
            link(value)
    with pytest.raises(LlamaError):
        chain.temperature(float("nan"))
    with pytest.raises(LlamaError):
        chain.logit_bias({model.n_vocab: 1.0})
    chain.close()


# -- the compiled picker and llama.cpp's own chain -----------------------------------------------------------


@pytest.fixture(scope="module")
def decoded(model):
    """A context whose last batch's third entry has logits."""
    with Context(model, n_ctx=64, n_threads=1) as context:
        batch = Batch(8)
        batch.extend([5, 9, 7], 0, 0, True)
        context.decode(batch)
        yield context


def picks(model, context, settings, n=40):
    sampler = make_chain(model, **settings)
    try:
        return [sampler.sample(context, 2) for _ in range(n)]
    finally:
        sampler.close()


BAN = dict.fromkeys(range(0, 256, 3), -np.inf)


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.0},
        {"temperature": 0.0, "bias": {7: 50.0}},
        {"temperature": 0.0, "bias": BAN},
        {"top_k": 5},
        {"top_k": 40, "top_p": 0.9, "min_p": 0.01, "temperature": 0.7},
        {"top_k": 3, "bias": {7: 50.0, 8: 49.0}},
        {"top_p": 0.8, "temperature": 1.3},
        {"top_p": 0.9, "min_p": 0.1, "bias": BAN},
        {"min_p": 0.05},
        {"min_p": 0.2, "temperature": 0.4, "seed": 11},
        {"repeat": 1.3, "top_k": 20},
        {"typical_p": 0.7},
    ],
    ids=label,
)
def test_the_same_tokens_with_and_without_a_compiler(model, decoded, settings, monkeypatch):
    compiled = picks(model, decoded, settings)
    monkeypatch.setattr(pick, "_library", lambda: None)
    assert picks(model, decoded, settings) == compiled


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_the_whole_distribution_is_drawn_from(model, decoded, temperature, compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(pick, "_library", lambda: None)
    n = 4000
    drawn = np.bincount(picks(model, decoded, {"temperature": temperature, "seed": 3}, n), minlength=model.n_vocab)
    logits = decoded.logits(2).astype(np.float64) / temperature
    p = np.exp(logits - logits.max())
    expected = n * p / p.sum()
    # Pearson's statistic over tokens expected often enough, the others together.
    often = expected >= 5
    observed = np.append(drawn[often], drawn[~often].sum())
    expected = np.append(expected[often], expected[~often].sum())
    statistic = ((observed - expected) ** 2 / np.maximum(expected, 1e-9)).sum()
    freedom = len(expected) - 1
    assert statistic < freedom + 6 * np.sqrt(2 * freedom) + 6


@pytest.mark.parametrize("compiled", [True, False])
def test_banned_tokens_are_never_drawn(model, decoded, compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(pick, "_library", lambda: None)
    assert not set(BAN) & set(picks(model, decoded, {"bias": BAN}, 500))


def test_logits_that_are_not_numbers_are_refused(model, decoded, monkeypatch):
    row = np.full(model.n_vocab, np.nan, np.float32)
    monkeypatch.setattr(decoded, "row", lambda _: row)
    monkeypatch.setattr(decoded, "row_address", lambda _: row.ctypes.data)
    for library in (pick._library(), None):
        monkeypatch.setattr(pick, "_library", lambda library=library: library)
        with pytest.raises(LlamaError, match="not numbers"):
            picks(model, decoded, {}, 1)
