"""How much text there is."""

import math

import pytest

from data.config import DataConfig
from data.errors import UserError
from tests.helpers.small_run import write_corpus
from train.budget import corpus


def test_small_text_is_counted_and_large_text_estimated_from_a_sample(tmp_path, monkeypatch):
    files = [write_corpus(tmp_path / f"{n}.jsonl", documents, seed=n) for n, documents in ((1, 300), (2, 900))]
    data = DataConfig(kind="files", files=[str(path) for path in files], val_fraction=0.05)
    exact = corpus.count(data, 1, (270, 300, 32768))
    whole = sum(path.stat().st_size for path in files)
    assert exact.exact
    assert 0.7 * whole < exact.bytes < whole  # without JSON's quotes, and without what is held out
    assert 1 < exact.bytes_per_token[270] < exact.bytes_per_token[300]
    assert 32768 not in exact.bytes_per_token  # too few merges
    assert 0.3 < exact.difficulty < 2
    monkeypatch.setattr(corpus, "READ_BYTES", whole // 4)
    sampled = corpus.count(data, 1, (300,))
    assert not sampled.exact
    assert sampled.bytes == pytest.approx(exact.bytes, rel=0.05)


def test_stories_never_end_and_missing_text_is_one_line():
    assert corpus.plan_sources(DataConfig(kind="tales"), "train")[0].files == ()
    assert corpus._size(corpus.plan_sources(DataConfig(kind="tales"), "train")[0]) == (math.inf, False)
    with pytest.raises(UserError, match=r"data\.files"):
        corpus.count(DataConfig(kind="files"), 1)
