"""The picker in C++ against llama.cpp's chain on the whole vocabulary, on rows as large as a real one's."""

import math

import numpy as np
import pytest

from slm.llama import pick
from slm.llama.errors import GrammarDeadEndError, LlamaError
from slm.llama.model import Model
from slm.llama.pick import LOOK_AT_ALL, NOT_NUMBERS, NOTHING_FITS
from tests.helpers.sampler_chains import label, make_chain

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
    """The pick of llama.cpp's own chain, bias included, from the whole vocabulary."""
    return sampler._pick(row, mask_of(np.arange(len(row))))


def mask_of(ids):
    """A mask in which the bits of these tokens are set."""
    bits = np.zeros(32 * ((N_VOCAB + 31) // 32), np.uint8)
    bits[ids] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)


CHAINS = [
    {"temperature": 0.0},
    {"temperature": 0.0, "bias": {7: 50.0, 9: 49.0}},
    {"temperature": 0.0, "bias": dict.fromkeys(range(0, 300, 2), -math.inf)},
    {"top_k": 40, "top_p": 0.95, "temperature": 0.8},
    {"top_k": 1},
    {"top_k": 350, "min_p": 0.02},
    {"top_k": 5, "bias": dict.fromkeys(range(0, 300, 20), -math.inf)},
    {"min_p": 0.05, "temperature": 1.5},
    {"min_p": 0.1, "top_k": 3, "bias": {11: 4.0, 12: -4.0}},
    {"top_p": 0.2, "temperature": 1.2},
    {"top_p": 0.5, "min_p": 0.05, "temperature": 0.3},
]


@pytest.mark.parametrize("settings", CHAINS, ids=label)
@pytest.mark.parametrize("n_vocab", [301, 5000, N_VOCAB])
def test_the_same_tokens_as_llama_cpps_chain_on_the_whole_vocabulary(tiny_path, n_vocab, settings):
    with Model(tiny_path) as model:
        model.n_vocab = n_vocab
        ours, theirs = (make_chain(model, **settings) for _ in range(2))
        picked = 0
        try:
            for row in rows():
                row = row[:n_vocab].copy()
                before = row.copy()
                token = ours._picker(row.ctypes.data)
                if token == LOOK_AT_ALL:  # small vocabularies leave nothing to rule out
                    assert n_vocab < N_VOCAB
                    continue
                picked += 1
                assert token == whole(theirs, row)
                assert (row == before).all()
        finally:
            ours.close()
            theirs.close()
        assert picked or n_vocab < N_VOCAB


@pytest.mark.parametrize("n_allowed", [1, 5, 4096, 4097, 45_000])
@pytest.mark.parametrize("settings", CHAINS, ids=label)
def test_a_mask_leaves_what_it_allows(model, settings, n_allowed):
    """The same pick as llama.cpp's chain among the allowed tokens; the row stays as it is."""
    chance = np.random.default_rng(n_allowed)
    ours, theirs = make_chain(model, **settings), make_chain(model, **settings)
    try:
        for row in rows(3):
            ids = np.sort(chance.permutation(N_VOCAB)[:n_allowed])
            mask, before = mask_of(ids), row.copy()
            token = ours._picker(row.ctypes.data, mask.ctypes.data)
            if token != LOOK_AT_ALL:
                assert token in ids
                assert token == theirs._pick(row, mask)
            assert (row == before).all()
    finally:
        ours.close()
        theirs.close()


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.0}, {"repeat": 1.2}, {"top_p": 0.9}], ids=label)
def test_nothing_fits_a_mask(model, settings):
    banned = dict.fromkeys(range(0, 9000, 2), -math.inf)
    sampler = make_chain(model, bias=dict(list(banned.items())[:4000]), **settings)
    try:
        for row, ids in ((rows(1)[0], []), (rows(1)[0], [4, 8]), (np.full(N_VOCAB, -np.inf, np.float32), [5] * 9)):
            mask = mask_of(ids)
            if sampler._picker is not None:
                assert sampler._picker(row.ctypes.data, mask.ctypes.data) == NOTHING_FITS
            with pytest.raises(GrammarDeadEndError, match="no token fits"):
                sampler.sample_row(row, mask)
        row = rows(1)[0]
        row[7] = np.nan
        with pytest.raises(LlamaError, match="not numbers"):
            sampler.sample_row(row, mask_of([7, 9]))
        assert sampler.sample_row(row, mask_of([9])) == 9
    finally:
        sampler.close()


@pytest.mark.parametrize("temperature", [0.6, 1.7])
def test_the_whole_distribution_is_drawn_from(model, temperature):
    (row,) = rows(1, width=1.0)
    sampler = make_chain(model, temperature=temperature, seed=3)
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
    sampler = make_chain(model, top_k=40)
    try:
        for at in (0, 63, 64, 30_001, N_VOCAB - 1):
            (row,) = rows(1)
            row[at] = np.nan
            assert sampler._picker(row.ctypes.data) == NOT_NUMBERS
    finally:
        sampler.close()


@pytest.mark.parametrize(
    ("settings", "row"),
    [
        ({"top_k": 40}, np.zeros(N_VOCAB, np.float32)),
        ({"top_k": 400}, rows(1)[0]),
        ({"top_k": 1 << 30}, rows(1)[0]),
        ({"top_k": 2**31 - 1}, rows(1)[0]),
        ({"top_p": 0.99}, np.zeros(N_VOCAB, np.float32)),
        ({"top_k": 40}, np.full(N_VOCAB, -np.inf, np.float32)),
    ],
    ids=["all alike", "many", "all", "all by the largest number", "flat", "all banned"],
)
def test_where_many_are_left_llama_cpp_looks_at_all(model, settings, row):
    sampler = make_chain(model, **settings)
    try:
        assert sampler._picker(row.ctypes.data) == LOOK_AT_ALL
    finally:
        sampler.close()


@pytest.mark.parametrize("n_vocab", [1, 2, 63, 65, 200, 1000])
def test_small_vocabularies(tiny_path, n_vocab):
    with Model(tiny_path) as small:
        small.n_vocab = n_vocab
        row = rows(1)[0][:n_vocab].copy()
        for settings in ({"temperature": 0.0}, {}, {"min_p": 0.9}):
            sampler = make_chain(small, **settings)
            try:
                token = sampler._picker(row.ctypes.data)
                assert 0 <= token < n_vocab
                if settings.get("temperature") == 0:
                    assert token == row.argmax()
            finally:
                sampler.close()


@pytest.mark.parametrize("settings", [{"repeat": 1.2}, {"repeat": 1.2, "top_k": 5}, {"top_p": 1.0, "typical_p": 0.5}])
def test_chains_that_have_to_see_every_token_have_no_picker(model, settings):
    sampler = make_chain(model, **settings)
    try:
        # Before typical sampling stands a top-k over (nearly) all, which only a row can tell.
        assert sampler._picker is None or settings.get("typical_p", 1) < 1
    finally:
        sampler.close()


def test_without_a_compiler_there_is_no_picker(model, monkeypatch):
    monkeypatch.setattr(pick, "_library", lambda: None)
    assert not pick.available()
    sampler = make_chain(model, temperature=0.0)
    assert sampler._picker is None
    sampler.close()
