"""Streams of documents: both splits, every document once, the same after resuming."""

import itertools
import json
import random
from collections import Counter

import pytest

from slm.data.config import DataConfig, SourceConfig
from slm.data.sources.contents import unit_hash
from slm.data.sources.documents import iter_documents, make_plans, open_documents, sample_documents
from slm.data.tales.story import story
from tests.helpers.documents import local, take, write_jsonl


@pytest.mark.parametrize("count", [2, 3, 10, 100, 3000])
def test_splits_share_no_document_and_both_have_text(tmp_path, count):
    rows = [f"Document {i}. " + "word " * 40 for i in range(count)]
    config = local(write_jsonl(tmp_path / "a.jsonl", rows), val_fraction=0.05)
    train, validation = (list(iter_documents(config, split, 1)) for split in ("train", "validation"))
    assert train
    assert validation
    assert sorted([*train, *validation]) == sorted(rows)
    if count == 3000:
        assert len(validation) == pytest.approx(150, abs=45)
    # A copy of a document goes where the document goes.
    doubled = local(write_jsonl(tmp_path / "b.jsonl", rows + rows), val_fraction=0.05)
    assert not set(iter_documents(doubled, "train", 1)) & set(iter_documents(doubled, "validation", 1))


def test_the_split_does_not_depend_on_workers_or_order(tmp_path):
    rows = [f"Document {i}" for i in range(200)]
    config = local(write_jsonl(tmp_path / "a.jsonl", rows), val_fraction=0.1)
    whole = set(iter_documents(config, "validation", 1))
    parts = [
        take(open_documents(make_plans(config, "validation"), seed=5, shard_index=i, num_shards=3, shuffle_buffer=7))
        for i in range(3)
    ]
    assert set().union(*parts) == whole
    assert sum(map(len, parts)) == len(whole)


@pytest.mark.parametrize("shards", [1, 2, 3, 5])
def test_shards_share_out_every_document_once(tmp_path, shards):
    rows = [f"Document {i}" for i in range(100)]
    for part in range(3):
        write_jsonl(tmp_path / f"{part}.jsonl", rows[part::3])
    plans = make_plans(local(tmp_path, val_fraction=0.1), "train")
    parts = [take(open_documents(plans, seed=1, shard_index=i, num_shards=shards)) for i in range(shards)]
    assert sorted(itertools.chain(*parts)) == sorted(iter_documents(local(tmp_path, val_fraction=0.1), "train", 2))
    assert max(map(len, parts)) - min(map(len, parts)) < 20


def test_order_follows_the_seed(tmp_path):
    config = local(write_jsonl(tmp_path / "a.jsonl", [f"Document {i}" for i in range(100)]))
    one, same, other = (list(iter_documents(config, "train", seed)) for seed in (1, 1, 2))
    assert one == same != other
    unshuffled = local(tmp_path / "a.jsonl", shuffle_buffer=0)
    assert list(iter_documents(unshuffled, "train", 1)) == sorted(one, key=lambda text: int(text.split()[1]))


def everything(tmp_path):
    """A mixture of every local kind, the file source in several files and formats."""
    import gzip

    random.seed(1)
    prose = "\n\n".join("word " * random.randint(5, 60) + str(i) for i in range(400))
    (tmp_path / "a.txt").write_text(prose)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(prose[::-1].encode()))
    write_jsonl(tmp_path / "c.jsonl", [f"row {i} " * 20 for i in range(50)])
    return DataConfig(
        kind="mixture",
        sources=[
            SourceConfig(kind="files", files=[str(tmp_path)], weight=2.0),
            SourceConfig(kind="tales", weight=1.0),
        ],
        val_fraction=0.1,
        shuffle_buffer=16,
    )


@pytest.mark.parametrize("shard", [(0, 1), (1, 2)])
def test_any_mixture_resumes_exactly_over_epochs(tmp_path, shard):
    plans = make_plans(everything(tmp_path), "train")

    def make():
        return open_documents(plans, seed=3, shard_index=shard[0], num_shards=shard[1], shuffle_buffer=16, endless=True)

    whole = take(make(), 900)
    stream, found = make(), []
    rng = random.Random(4)
    while len(found) < 800:
        found += take(stream, rng.randint(0, 60))
        state = json.loads(json.dumps(stream.state_dict()))
        assert len(json.dumps(state)) < 1000
        stream = make()
        stream.load_state_dict(state)
    assert found == whole[: len(found)]
    assert state["streams"][0]["start"]["epoch"] >= 1


def test_tales_are_held_out_by_their_text():
    config = DataConfig(kind="tales", val_fraction=0.1, shuffle_buffer=0)
    train = list(sample_documents(config, "train", 2_000_000, 0))
    validation = list(sample_documents(config, "validation", 500_000, 0))
    assert all(unit_hash(text) < 0.1 for text in validation)
    assert not set(train) & set(validation)
    assert validation[0] in {story(0, index) for index in range(200)}
    assert Counter(text in train for text in validation) == {False: len(validation)}
    assert len(list(iter_documents(config, "validation", 0))) == pytest.approx(2000, abs=200)  # it ends


def test_sample_documents(tmp_path):
    rows = [f"Document {i} " + "é" * 40 for i in range(200)]
    config = local(write_jsonl(tmp_path / "a.jsonl", rows))
    sample = list(sample_documents(config, "train", 2000, 1))
    assert 1800 < sum(len(text.encode()) for text in sample) <= 2000
    assert (
        sample == list(sample_documents(config, "train", 2000, 1)) != list(sample_documents(config, "train", 2000, 2))
    )
    assert len(list(sample_documents(config, "train", 1, 1))) == 1


def test_half_a_surrogate_pair_is_replaced_in_a_sample(tmp_path):
    """It is valid JSON, and UTF-8, in which samples are written and learned from, cannot carry it."""
    rows = [f"A cut emoji \ud83d, number {i}, in a text of some length." for i in range(50)]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    sample = list(sample_documents(local(path), "train", 2000, 1))
    assert all("A cut emoji \ufffd, number" in text for text in sample)
