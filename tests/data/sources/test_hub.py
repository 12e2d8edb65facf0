"""The Hub's stream, run by the real ``datasets`` library on a local data set of the same layout."""

import itertools
import json
import shutil
import time
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slm.data.bad_records import TALLY
from slm.data.config import DataConfig, SourceConfig, TokenizerConfig
from slm.data.errors import UserError
from slm.data.sources import hub
from slm.data.sources.corpus import CorpusStream
from slm.data.sources.documents import iter_documents, make_plans, open_documents, open_stream
from slm.data.stream.loader import Loader, validation_text
from slm.data.tokenizers.make import make_tokenizer
from tests.helpers.documents import take


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    """Four training shards of 50 rows and a validation shard, as a data set repository holds them."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "stories"
    folder.mkdir()
    for shard in range(4):
        rows = [f"Story {shard} {i} " + "word " * (i % 5) for i in range(50)]
        path = folder / f"train-0000{shard}-of-00004.parquet"
        pq.write_table(pa.table({"text": rows, "id": range(50)}), path, row_group_size=20)
    pq.write_table(pa.table({"text": ["v1", "v2"], "id": [1, 2]}), folder / "validation-00000-of-00001.parquet")
    return folder


def one_pass(source, index, shards):
    corpus = hub.HubCorpus(source, source.split)
    return CorpusStream(corpus, order=lambda count: list(range(count)), shard_index=index, num_shards=shards)


@pytest.mark.parametrize("shards", [1, 2, 3, 6])
def test_every_row_once_whatever_the_number_of_shards(dataset, shards):
    source = SourceConfig(kind="hub", path=str(dataset))
    found = []
    for index in range(shards):
        part = take(one_pass(source, index, shards))
        assert part
        found += part
    assert len(found) == len(set(found)) == 200


@pytest.mark.parametrize(("index", "shards"), [(0, 1), (1, 2), (4, 6)])
def test_resumes_exactly(dataset, index, shards):
    source = SourceConfig(kind="hub", path=str(dataset))

    def make():
        return one_pass(source, index, shards)

    whole = take(make())
    for cut in (0, 1, 19, 20, 21, 33, len(whole) - 1, len(whole)):
        stream = make()
        take(stream, cut)
        state = json.loads(json.dumps(stream.state_dict()))
        stream = make()
        stream.load_state_dict(state)
        assert take(stream) == whole[cut:], cut


def test_splits_epochs_and_shuffling(dataset):
    config = DataConfig(kind="hub", path=str(dataset), val_split="validation", shuffle_buffer=30)
    assert sorted(iter_documents(config, "validation", 1)) == ["v1", "v2"]
    assert len(list(iter_documents(config, "train", 1))) == 200  # nothing is held out besides
    hashed = DataConfig(kind="hub", path=str(dataset), val_fraction=0.2)
    train, validation = (set(iter_documents(hashed, split, 1)) for split in ("train", "validation"))
    assert len(train) + len(validation) == 200
    assert 20 < len(validation) < 60

    def make():
        return open_documents(make_plans(config, "train"), seed=2, shuffle_buffer=30, endless=True)

    whole = take(make(), 500)
    stream = make()
    take(stream, 460)
    state = json.loads(json.dumps(stream.state_dict()))
    assert state["start"]["epoch"] == 2
    stream = make()
    stream.load_state_dict(state)
    assert take(stream, 40) == whole[460:]


def test_wikitext_lines_become_articles(tmp_path):
    articles = [
        [f" = Title {i} = \n", "", f" Text {i} . \n", f" = = Part {i} = = \n", " More . \n", ""] for i in range(9)
    ]
    rows = ["", *itertools.chain(*articles)]
    folder = tmp_path / "wiki"
    folder.mkdir()
    pq.write_table(pa.table({"text": rows}), folder / "train-00000-of-00001.parquet")
    source = SourceConfig(kind="hub", path=str(folder), rows="wikitext")

    def make(index=0, shards=1):
        return one_pass(source, index, shards)

    whole = take(make())
    joined = ["".join(row or " \n" for row in article) for article in articles]
    assert whole == [" \n" + joined[0], *joined[1:]]
    assert sorted([*take(make(0, 2)), *take(make(1, 2))]) == sorted(whole)
    for cut in range(len(whole) + 1):
        stream = make()
        take(stream, cut)
        state = json.loads(json.dumps(stream.state_dict()))
        stream = make()
        stream.load_state_dict(state)
        assert take(stream) == whole[cut:]


def test_a_later_pass_over_wikitext_is_whole_after_a_resume(tmp_path):
    folder = tmp_path / "wiki"
    folder.mkdir()
    rows = [text for i in range(9) for text in (f" = Title {i} = \n", f" Text {i} . \n")]
    pq.write_table(pa.table({"text": rows}), folder / "train-00000-of-00001.parquet")
    (plan,) = make_plans(DataConfig(kind="hub", path=str(folder), rows="wikitext", val_fraction=0.01), "train")

    def make():
        return open_stream(plan, seed=1, repeat=True, wrap=lambda corpus: corpus)

    whole = take(make(), 27)
    assert whole[:9] == whole[9:18]
    stream = make()
    take(stream, 4)
    other = make()
    other.load_state_dict(json.loads(json.dumps(stream.state_dict())))
    assert take(other, 23) == whole[4:]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"split": "trian"}, ["no split 'trian'", "did you mean 'train'", "validation"]),
        ({"text_field": "body"}, ["no column 'body'", "'text'", "'id'", "data.text_field"]),
        ({"text_field": "id"}, ["'id'", "not text"]),
        ({"subset": "20231101.fr"}, ["20231101.fr"]),
    ],
)
def test_wrong_names(dataset, options, words):
    source = SourceConfig(kind="hub", path=str(dataset), **options)
    with pytest.raises(UserError) as caught:
        take(one_pass(source, 0, 1), 1)
    assert all(word in str(caught.value) for word in words), caught.value
    assert "\n" not in str(caught.value)


@pytest.fixture
def tiny_stories():
    return DataConfig(kind="hub", path="roneneldan/TinyStories")


def test_offline_says_so(tiny_stories, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"TinyStories is on .*HF_HUB_OFFLINE is set.*data=tales.*data\.files="):
        make_plans(tiny_stories, "train")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    with pytest.raises(UserError, match=r"TinyStories is on .*HF_DATASETS_OFFLINE is set"):
        make_plans(tiny_stories, "train")


@pytest.mark.parametrize("address", ["http://127.0.0.1:9", "http://no-such-host.invalid", "http://192.0.2.1"])
def test_an_unreachable_hub_is_named_within_seconds(tiny_stories, monkeypatch, address):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(hub, "TIMEOUT", 2)
    start = time.monotonic()
    with pytest.raises(UserError) as caught:
        make_plans(tiny_stories, "train")
    assert time.monotonic() - start < 15
    for word in (address.split("//")[1], "roneneldan/TinyStories", "data=tales", "data=local"):
        assert word in str(caught.value)


def test_each_epoch_reads_the_shards_in_another_order(dataset):
    config = DataConfig(kind="hub", path=str(dataset), val_split="validation", shuffle_buffer=0)

    def orders(seed, shard_index=0, num_shards=1):
        stream = open_documents(
            make_plans(config, "train"), seed=seed, shard_index=shard_index, num_shards=num_shards, endless=True
        )
        documents = take(stream, 4 * 200 // num_shards)
        size = len(documents) // 4
        return [documents[i * size : (i + 1) * size] for i in range(4)]

    epochs = orders(seed=5)
    assert all(len(set(epoch)) == 200 for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1
    assert orders(seed=5) == epochs != orders(seed=6)
    # Two shards have different files in each epoch, between them all.
    for one, other in zip(orders(5, 0, 2), orders(5, 1, 2), strict=True):
        assert len({*one, *other}) == 200


def test_a_run_whose_text_is_in_the_cache_resumes_without_a_network(dataset, tmp_path, monkeypatch):
    """Nothing asks the Hub for the commit, for the number of files, or for text that is in the cache."""
    tokenizer = make_tokenizer(TokenizerConfig(kind="bpe", vocab_size=280), lambda: iter(["some words"] * 3))
    there = hub.open_split
    monkeypatch.setattr(
        hub, "open_split", lambda source, split: there(SourceConfig(kind="hub", path=str(dataset)), split)
    )
    monkeypatch.setattr(hub, "check_reachable", lambda source: None)
    config = DataConfig(
        kind="hub",
        path="owner/stories",
        revision="0123456789" * 4,
        cache_dir=str(tmp_path / "tokens"),
        val_fraction=0.2,
    )

    def start():
        return Loader(config, tokenizer, seq_len=32, micro_batch=2, seed=3, workers=0)

    def validation():
        return validation_text(config, tokenizer, 32, 4, 3).blocks

    whole, blocks = start(), validation()
    batches = [next(whole) for _ in range(20)]
    stopped = start()
    for _ in range(5):
        next(stopped)
    state = json.loads(json.dumps(stopped.state_dict()))

    def unreachable(*_):
        raise UserError("huggingface.co could not be reached")

    monkeypatch.setattr(hub, "check_reachable", unreachable)
    monkeypatch.setattr(hub, "open_split", None)
    resumed = start()
    resumed.load_state_dict(state)
    assert np.array_equal([next(resumed) for _ in range(15)], batches[5:])
    assert np.array_equal(validation(), blocks)
    shutil.rmtree(tmp_path / "tokens")
    with pytest.raises(UserError, match="could not be reached"):
        next(start())


def test_rows_without_text_are_left_out_or_end_the_run(dataset):
    source = SourceConfig(kind="hub", path=str(dataset), text_field="id", on_bad="skip")
    assert take(one_pass(source, 0, 1)) == []
    found = TALLY.record([str(dataset)])
    assert found["the column 'id' is not text"].count == 200
    assert found["the column 'id' is not text"].first == f"{dataset}: file 1, row 1: 0"
    with pytest.raises(UserError, match=r"file 1, row 1: the column 'id' is not text but 0: .*on_bad=skip"):
        take(one_pass(replace(source, on_bad="stop"), 0, 1))


TEXTS = ["one", "zwei é", "", None, "fünf"]


@pytest.mark.parametrize("kind", ["string", "large_string", "string_view", "binary", "large_binary", "dictionary"])
def test_columns_of_every_type_for_text(tmp_path, kind):
    column = pa.array(TEXTS)
    if "binary" in kind:
        column = pa.array([None if text is None else text.encode() for text in TEXTS], getattr(pa, kind)())
    elif kind != "string":
        column = column.dictionary_encode() if kind == "dictionary" else pa.array(TEXTS, getattr(pa, kind)())
    pq.write_table(pa.table({"text": column}), tmp_path / "train-00000-of-00001.parquet")
    assert take(one_pass(SourceConfig(kind="hub", path=str(tmp_path)), 0, 1)) == ["one", "zwei é", "fünf"]


def not_utf8(rows):
    """A column of strings whose bytes are these, as other programs write them."""
    return pa.Array.from_buffers(pa.string(), len(rows), pa.array(rows, pa.binary()).buffers())


def test_text_that_is_not_utf8_is_left_out_or_ends_the_run(tmp_path):
    for shard, rows in enumerate(([b"one", b"two"], [b"three", b"caf\xe9", b"five", b"\xff\xfe", b"seven"])):
        pq.write_table(pa.table({"text": not_utf8(rows)}), tmp_path / f"train-0000{shard}-of-00002.parquet")
    source = SourceConfig(kind="hub", path=str(tmp_path), on_bad="skip")
    whole = ["one", "two", "three", "five", "seven"]
    for cut in range(len(whole)):
        stream = one_pass(source, 0, 1)
        assert take(stream, cut) == whole[:cut]
        state = json.loads(json.dumps(stream.state_dict()))
        stream = one_pass(source, 0, 1)
        stream.load_state_dict(state)
        assert take(stream) == whole[cut:]
    found = TALLY.record([str(tmp_path)])["not UTF-8"]
    assert found.count == 2  # however often they are read, and from where
    assert found.first == f"{tmp_path}: file 2, row 2: byte 0xe9 at its offset 3"
    with pytest.raises(UserError, match=r"file 2, row 2: not UTF-8 \(byte 0xe9 at its offset 3\): .*on_bad=skip"):
        take(one_pass(replace(source, on_bad="auto"), 0, 1))


def test_conversations_that_are_not_utf8(tmp_path):
    table = pa.table({"prompt": not_utf8([b"Hi", b"caf\xe9"]), "response": pa.array([b"Hello", b"x"], pa.binary())})
    pq.write_table(table, tmp_path / "train-00000-of-00001.parquet")
    source = SourceConfig(kind="chat", path=str(tmp_path))
    (conversation,) = take(one_pass(source, 0, 1))
    assert [each["content"] for each in json.loads(conversation)["messages"]] == ["Hi", "Hello"]
    with pytest.raises(UserError, match=r"file 1, row 2: its column 'prompt' is not UTF-8; .*on_bad=skip"):
        take(one_pass(replace(source, on_bad="stop"), 0, 1))


def test_rows_that_are_messages_of_trees(tmp_path):
    """As OpenAssistant's data sets are on the Hub: one conversation for each tree, also after a resumption."""
    rows = []
    for tree in range(5):
        for number, (role, text) in enumerate((("prompter", f"{tree}?"), ("assistant", f"{tree}."))):
            name = f"{tree}-{number}"
            parent = f"{tree}-0" if number else None
            rows.append(
                {"message_id": name, "parent_id": parent, "message_tree_id": str(tree), "text": text, "role": role}
            )
    table = pa.Table.from_pylist(rows)
    for shard in range(2):
        part = table.slice(0, 6) if shard == 0 else table.slice(6)
        pq.write_table(part, tmp_path / f"train-0000{shard}-of-00002.parquet", row_group_size=1)
    source = SourceConfig(kind="chat", path=str(tmp_path))
    whole = take(one_pass(source, 0, 1))
    said = [[each["content"] for each in json.loads(document)["messages"]] for document in whole]
    assert said == [[f"{tree}?", f"{tree}."] for tree in range(5)]
    for cut in range(6):
        stream = one_pass(source, 0, 1)
        take(stream, cut)
        state = json.loads(json.dumps(stream.state_dict()))
        stream = one_pass(source, 0, 1)
        stream.load_state_dict(state)
        assert take(stream) == whole[cut:], cut
    stream = one_pass(source, 0, 1)
    stream.load_state_dict({**state, "part": 1, "record": 1, "ordinal": 4, "at": None})  # without a position
    assert take(stream) == whole[4:]


def test_a_configuration_of_the_data_set_by_its_card(tmp_path):
    """Folders and a card as FineWeb-Edu has them."""
    for folder, text in (("sample/10BT", "wanted"), ("data/CC-MAIN-2013-20", "other")):
        (tmp_path / folder).mkdir(parents=True)
        pq.write_table(pa.table({"text": [f"{text} {i}" for i in range(3)]}), tmp_path / folder / "000_00000.parquet")
    parts = (("default", "data/*/*"), ("sample-10BT", "sample/10BT/*"))
    cards = [f"- config_name: {name}\n  data_files: [{{split: train, path: {path}}}]" for name, path in parts]
    (tmp_path / "README.md").write_text("\n".join(["---", "configs:", *cards, "---", "# A data set"]))
    source = SourceConfig(kind="hub", path=str(tmp_path), subset="sample-10BT")
    assert take(one_pass(source, 0, 1)) == ["wanted 0", "wanted 1", "wanted 2"]
    assert take(one_pass(replace(source, subset=""), 0, 1)) == ["other 0", "other 1", "other 2"]
    with pytest.raises(UserError, match=r"'sample-1T' not found.*'sample-10BT'"):
        take(one_pass(replace(source, subset="sample-1T"), 0, 1))
