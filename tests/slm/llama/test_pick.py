"""The picker in C++ against llama.cpp's chain on the whole vocabulary, on rows as large as a real one's."""

import math

import numpy as np
import pytest

from serve.engine.messages import SamplingParams
from serve.engine.sampling import make_sampler
from slm.llama import pick
from slm.llama.model import Model
from slm.llama.pick import LOOK_AT_ALL, NOT_NUMBERS
from slm.llama.sampler import Sampler

N_VOCAB = 50_304

pytestmark = pytest.mark.skipif(not pick.available(), reason="no C++ compiler: the picker cannot be built")


class Row:
    """Stands where a context does: one row of logits."""

    def __init__(self, logits):
        self.logits = logits

    def row(self, _):
        return self.logits

    def row_address(self, _):
        return self.logits.ctypes.data


@pytest.fixture(scope="module")
def model(tiny_path):
    with Model(tiny_path) as model:
        # Only the samplers' tables are made for it; the rows come from here.
        model.n_vocab = N_VOCAB
        yield model


def rows(n=12, *, width=3.0):
    chance = np.random.default_rng(5)
    return [(width * chance.standard_normal(N_VOCAB)).astype(np.float32) for _ in range(n)]


def whole(sampler, row):
    """llama.cpp's own pick among all of them."""
    logits = row.copy()
    if sampler._bias is not None:
        ids, added = sampler._bias
        logits[ids] += added
    return sampler._apply(sampler._links, logits, np.arange(len(logits)))


CHAINS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.0, logit_bias=((7, 50.0), (9, 49.0))),
    SamplingParams(top_k=40, top_p=0.95, temperature=0.8),
    SamplingParams(top_k=1),
    SamplingParams(top_k=350, min_p=0.02),
    SamplingParams(top_k=5, logit_bias=tuple((token, -math.inf) for token in range(0, N_VOCAB, 20))),
    SamplingParams(min_p=0.05, temperature=1.5),
    SamplingParams(top_p=0.2, temperature=1.2),
]


@pytest.mark.parametrize(
    "params", CHAINS, ids=lambda p: f"k{p.top_k}p{p.top_p}m{p.min_p}t{p.temperature}b{len(p.logit_bias)}"
)
def test_the_pick_of_the_whole_chain(model, params):
    ours, theirs = (make_sampler(model, params, [], context=64) for _ in range(2))
    try:
        for row in rows():
            before = row.copy()
            token = ours._picker(row.ctypes.data)
            assert token >= 0
            assert token == whole(theirs, row)
            assert (row == before).all()
    finally:
        ours.close()
        theirs.close()


@pytest.mark.parametrize(
    "params", [SamplingParams(temperature=0.7), SamplingParams(top_p=0.4)], ids=["draw", "nucleus"]
)
def test_the_pick_of_the_same_in_numpy(model, params):
    ours, theirs = (make_sampler(model, params, [], context=64) for _ in range(2))
    try:
        for row in rows(width=4.0):
            assert ours._picker(row.ctypes.data) == theirs._sample_narrowed(row, float(row.max()))
    finally:
        ours.close()
        theirs.close()


@pytest.mark.parametrize("temperature", [0.6, 1.7])
def test_the_whole_distribution_is_drawn_from(model, temperature):
    (row,) = rows(1, width=1.0)
    sampler = make_sampler(model, SamplingParams(temperature=temperature, seed=3), [], context=64)
    n = 6000
    try:
        drawn = np.array([sampler.sample(Row(row), 0) for _ in range(n)])
    finally:
        sampler.close()
    p = np.exp((row - row.max()) / temperature, dtype=np.float64)
    p /= p.sum()
    # Tokens in order of probability, in twenty parts of about the same one.
    order = np.argsort(-p)
    part = np.minimum((p[order].cumsum() * 20).astype(int), 19)
    expected = n * np.bincount(part, p[order], 20)
    observed = np.bincount(part[np.argsort(order)][drawn], minlength=20)
    statistic = ((observed - expected) ** 2 / expected).sum()
    assert statistic < 19 + 6 * math.sqrt(2 * 19)


def test_rows_that_are_not_numbers(model):
    sampler = make_sampler(model, SamplingParams(top_k=40), [], context=64)
    try:
        for at in (0, 63, 64, 30_001, N_VOCAB - 1):
            (row,) = rows(1)
            row[at] = np.nan
            assert sampler._picker(row.ctypes.data) == NOT_NUMBERS
    finally:
        sampler.close()


@pytest.mark.parametrize(
    ("params", "row"),
    [
        (SamplingParams(top_k=40), np.zeros(N_VOCAB, np.float32)),
        (SamplingParams(top_k=400), rows(1)[0]),
        (SamplingParams(top_p=0.99), np.zeros(N_VOCAB, np.float32)),
        (SamplingParams(top_k=40), np.full(N_VOCAB, -np.inf, np.float32)),
    ],
    ids=["all alike", "many", "flat", "all banned"],
)
def test_where_many_are_left_llama_cpp_looks_at_all(model, params, row):
    sampler = make_sampler(model, params, [], context=64)
    try:
        assert sampler._picker(row.ctypes.data) == LOOK_AT_ALL
    finally:
        sampler.close()


@pytest.mark.parametrize("n_vocab", [1, 2, 63, 65, 200, 1000])
def test_small_vocabularies(tiny_path, n_vocab):
    with Model(tiny_path) as small:
        small.n_vocab = n_vocab
        row = rows(1)[0][:n_vocab].copy()
        for params in (SamplingParams(temperature=0.0), SamplingParams(), SamplingParams(min_p=0.9)):
            sampler = make_sampler(small, params, [], context=64)
            try:
                token = sampler._picker(row.ctypes.data)
                assert 0 <= token < n_vocab
                if params.temperature == 0:
                    assert token == row.argmax()
            finally:
                sampler.close()


def test_chains_that_have_to_see_every_token_have_no_picker(model):
    for params in (SamplingParams(repeat_penalty=1.2), SamplingParams(typical_p=0.5, top_k=0)):
        sampler = make_sampler(model, params, [], context=64)
        assert sampler._picker is None or params.typical_p < 1
        sampler.close()


def test_without_a_compiler_the_picks_come_from_numpy(model, monkeypatch):
    monkeypatch.setattr(pick, "_library", lambda: None)
    sampler = make_sampler(model, SamplingParams(temperature=0.0), [], context=64)
    (row,) = rows(1)
    try:
        assert sampler._picker is None
        assert isinstance(sampler, Sampler)
        assert sampler.sample(Row(row), 0) == row.argmax()
    finally:
        sampler.close()
