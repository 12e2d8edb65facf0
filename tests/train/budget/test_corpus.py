"""How much text there is."""

import math

import numpy as np
import pytest

from slm.configuration import build, load_config
from slm.data.config import DataConfig
from slm.data.errors import UserError
from slm.train.budget import corpus
from tests.helpers.small_run import write_corpus


def test_small_text_is_counted_and_large_text_estimated_from_a_sample(tmp_path, monkeypatch):
    files = [write_corpus(tmp_path / f"{n}.jsonl", documents, seed=n) for n, documents in ((1, 300), (2, 900))]
    data = DataConfig(kind="files", files=[str(path) for path in files], val_fraction=0.05)
    exact = corpus.count(data, 1, (270, 300, 32768))
    whole = sum(path.stat().st_size for path in files)
    assert exact.exact
    assert 0.7 * whole < exact.bytes < whole  # without JSON's quotes, and without what is held out
    assert 1 < exact.bytes_per_token[270] < exact.bytes_per_token[300]
    assert 32768 not in exact.bytes_per_token  # too few merges
    assert 0.3 < exact.level.remembering < 2
    monkeypatch.setattr(corpus, "READ_BYTES", whole // 4)
    sampled = corpus.count(data, 1, (300,))
    assert not sampled.exact
    assert sampled.bytes == pytest.approx(exact.bytes, rel=0.05)


def text_of(word_types: int, words: int) -> str:
    """Words of eight random letters, the k-th most frequent 1 / k as often as the first."""
    chance = np.random.default_rng(1)
    types = ["".join(row) for row in chance.choice(list("etaoinshrdlu"), (word_types, 8))]
    weight = 1 / np.arange(1, word_types + 1)
    return " ".join(chance.choice(types, words, p=weight / weight.sum()))


def test_vocabularies_that_a_sample_cannot_fill_are_offered_where_the_text_is_larger_and_has_more_words():
    sizes = (300, 600, 2400)
    growing, closed = text_of(20_000, 3000), text_of(60, 3000)
    few = corpus.bytes_per_token(growing, sizes)
    assert set(few) == {300, 600}
    more = corpus.bytes_per_token(growing, sizes, 1e9)
    assert {size: more[size] for size in few} == few
    assert more[2400] == pytest.approx(few[600] * 4**corpus.LONGER)
    assert set(corpus.bytes_per_token(growing, sizes, 1.1 * len(growing))) == {300, 600}
    assert 2400 not in corpus.bytes_per_token(closed, sizes, 1e9)  # as the embedded stories: always the same words


def test_endless_stories_in_a_mixture_do_not_make_its_articles_endless(tmp_path):
    file = write_corpus(tmp_path / "articles.jsonl", 300, seed=1)
    data = build(DataConfig, load_config("train", ["data=wikipedia_stories", f"data.files=[{file}]"])["data"], "data")
    alone = DataConfig(kind="files", files=[str(file)], val_fraction=data.val_fraction)
    articles = corpus.count(alone, 1, (300,)).bytes
    assert corpus.count(data, 1, (300,)).bytes == pytest.approx(articles / 0.8, rel=0.01)
    assert corpus._together([2e6, 3e6], [1.0, 9.0]) == 5e6
    assert corpus._together([math.inf], [1.0]) == math.inf


def test_stories_never_end_and_missing_text_is_one_line():
    assert corpus.plan_sources(DataConfig(kind="tales"), "train")[0].files == ()
    assert corpus._size(corpus.plan_sources(DataConfig(kind="tales"), "train")[0]) == (math.inf, False)
    with pytest.raises(UserError, match=r"data\.files"):
        corpus.count(DataConfig(kind="files"), 1)
