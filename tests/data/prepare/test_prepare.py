"""A prepared corpus: training reads from it what it reads from the text, and it is the same however it was made."""

import dataclasses
import gc
import gzip
import json
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slm.configuration import to_dict
from slm.data.account.account import account
from slm.data.config import DataConfig, SourceConfig, TokenizerConfig
from slm.data.errors import UserError
from slm.data.prepare import shard as shard_module
from slm.data.prepare import work as work_module
from slm.data.prepare.finish import finish
from slm.data.prepare.repeated import list_repeated, make_signatures, remove_signatures
from slm.data.prepare.shard import make_shard
from slm.data.prepare.work import begin
from slm.data.sources import duplicates
from slm.data.sources.documents import make_plans, sample_documents
from slm.data.stream.chat_setup import chat_setup
from slm.data.stream.loader import Loader, calibration_blocks, validation_text
from slm.data.tales.story import story
from slm.data.tokenizers.make import make_tokenizer

SEQ = 32


@pytest.fixture(scope="module")
def tokenizer():
    config = TokenizerConfig(kind="bpe", vocab_size=300)
    return make_tokenizer(config, lambda: (story(0, index) for index in range(200)))


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(work_module, "SHARD_BYTES", 6000)


@pytest.fixture
def text(tmp_path):
    """Records with empty ones among them, in three files, one of them compressed and one larger than a shard."""
    folder = tmp_path / "text"
    folder.mkdir()
    rng = random.Random(1)
    for part, count in enumerate((40, 300, 40)):
        rows = [f"{part} {i} " + "the cat sat. " * rng.randrange(12) if i % 7 else "" for i in range(count)]
        content = "".join(json.dumps({"text": row}) + "\n" for row in rows).encode()
        if part == 2:
            (folder / "2.jsonl.gz").write_bytes(gzip.compress(content))
        else:
            (folder / f"{part}.jsonl").write_bytes(content)
    return folder


@pytest.fixture
def books(tmp_path):
    """Long documents: of each a passage is held out, and one to calibrate a head."""
    folder = tmp_path / "books"
    folder.mkdir()
    for part in range(3):
        stories = "\n\n".join(story(part, index) for index in range(120))
        assert len(stories) > 40_000
        (folder / f"{part}.txt").write_text(stories)
    return folder


def config_of(folder, **options):
    return DataConfig(**({"kind": "files", "files": [str(folder)], "val_fraction": 0.1, "shuffle_buffer": 8} | options))


def flat(config):
    return {f"data.{name}": value for name, value in to_dict(config).items()} | {
        "tokenizer.kind": "bpe",
        "tokenizer.vocab_size": 300,
    }


def prepare(config, folder, tokenizer):
    """Prepare all shards in this process, the last one first."""
    work = begin(config, folder, lambda: tokenizer, flat(config))
    if work.needs_list:
        for number in reversed(work.missing("signatures")):
            make_signatures(work, number)
        list_repeated(work)
    remove_signatures(work)
    work = work.with_list()
    for number in reversed(work.missing("shards")):
        make_shard(work, number)
    return work, finish(work)


def test_nothing_of_a_shard_waits_for_the_collector(text, tokenizer, tmp_path):
    """A hundred shards' ids and vocabularies did, so that memory grew with the text."""
    work = begin(config_of(text), tmp_path / "corpus", lambda: tokenizer, flat(config_of(text)))
    gc.collect()
    gc.disable()
    try:
        for number in work.missing("shards")[:2]:
            make_shard(work, number)
        assert not [each for each in gc.get_objects() if type(each) is shard_module._Maker]
    finally:
        gc.enable()


def from_corpus(folder, **options):
    return DataConfig(kind="files", files=[str(folder)], **({"shuffle_buffer": 8} | options))


def take(config, tokenizer, count, *, state=None, **options):
    with Loader(config, tokenizer, **({"seq_len": SEQ, "micro_batch": 2, "seed": 5, "workers": 0} | options)) as loader:
        if state:
            loader.load_state_dict(state)
        return [next(loader) for _ in range(count)], json.loads(json.dumps(loader.state_dict()))


def same_as_text(config, folder, tokenizer, count, **options):
    for shard in ({}, {"rank": 1, "world_size": 3}):
        expected, _ = take(config, tokenizer, count, **shard, **options)
        found, _ = take(from_corpus(folder), tokenizer, count, **shard, **options)
        assert np.array_equal(found, expected), shard


FILTERS = {"min_chars": 20, "dedup": "exact", "mask_personal": True}


@pytest.mark.parametrize("options", [{}, FILTERS, {"rules": "gopher"}])
def test_the_batches_are_those_of_the_text(text, tokenizer, tmp_path, options):
    config = config_of(text, **options, cache_dir=str(tmp_path / "cache"))
    if "rules" in options:
        (text / "3.jsonl").write_text("".join(json.dumps({"text": story(1, n)}) + "\n" for n in range(60)))
    work, _ = prepare(config, tmp_path / "corpus", tokenizer)
    assert len(work.shards) >= 4
    assert any(cut.record for shard in work.shards for cut in shard.cuts), "no file was cut"
    same_as_text(config, tmp_path / "corpus", tokenizer, 100)
    expected = validation_text(config, tokenizer, SEQ, 20, 5).blocks
    assert np.array_equal(validation_text(from_corpus(tmp_path / "corpus"), tokenizer, SEQ, 20, 5).blocks, expected)


@pytest.mark.parametrize("kind", ["parquet", "txt"])
def test_large_files_of_other_kinds_are_cut_between_records(tokenizer, tmp_path, kind):
    rows = [f"{i} " + "the cat sat. " * (i % 12) if i % 7 else None for i in range(400)]
    path = tmp_path / f"large.{kind}"
    if kind == "parquet":
        pq.write_table(pa.table({"text": rows}), path, row_group_size=64)
    else:
        path.write_text("\n<|endoftext|>\n".join(row or "" for row in rows))
    config = config_of(path)
    work, report = prepare(config, tmp_path / "corpus", tokenizer)
    assert len(work.shards) > 2
    assert report["sources"][0]["read"] == 400
    same_as_text(config, tmp_path / "corpus", tokenizer, 100)


def test_what_is_kept_to_calibrate_a_head_is_left_out_only_where_a_head_is_calibrated(text, tokenizer, tmp_path):
    (text / "3.jsonl").write_text("".join(json.dumps({"text": story(1, n)}) + "\n" for n in range(160)))
    config, corpus = config_of(text), from_corpus(tmp_path / "corpus")
    prepare(config, tmp_path / "corpus", tokenizer)
    for calibrates in (True, False):
        same_as_text(config, tmp_path / "corpus", tokenizer, 150, calibrates=calibrates)
    expected = calibration_blocks(config, tokenizer, SEQ, 20, 5)
    assert len(expected) > 3
    assert np.array_equal(calibration_blocks(corpus, tokenizer, SEQ, 20, 5), expected)


def test_passages_of_long_documents(books, tokenizer, tmp_path):
    config = config_of(books)
    _, report = prepare(config, tmp_path / "corpus", tokenizer)
    same_as_text(config, tmp_path / "corpus", tokenizer, 200, calibrates=True)
    expected = validation_text(config, tokenizer, SEQ, 20, 5).blocks
    assert np.array_equal(validation_text(from_corpus(tmp_path / "corpus"), tokenizer, SEQ, 20, 5).blocks, expected)
    assert report["sources"][0]["passages_held_out"] == 3


def test_a_mixture_and_validation_text_of_its_own(text, books, tokenizer, tmp_path):
    apart = tmp_path / "apart.jsonl"
    apart.write_text("".join(json.dumps({"text": story(9, n)}) + "\n" for n in range(40)))
    sources = [
        SourceConfig(kind="files", name="rows", files=[str(text)], val_files=[str(apart)], weight=0.3, max_epochs=9),
        SourceConfig(kind="files", name="books", files=[str(books)], weight=0.7, validated=False),
    ]
    config = DataConfig(kind="mixture", sources=sources, val_fraction=0.1, shuffle_buffer=8)
    prepare(config, tmp_path / "corpus", tokenizer)
    same_as_text(config, tmp_path / "corpus", tokenizer, 150, calibrates=True)
    expected = validation_text(config, tokenizer, SEQ, 20, 5).blocks
    assert np.array_equal(validation_text(from_corpus(tmp_path / "corpus"), tokenizer, SEQ, 20, 5).blocks, expected)


def test_a_position_in_a_corpus_holds_wherever_the_corpus_is(text, tokenizer, tmp_path):
    prepare(config_of(text), tmp_path / "corpus", tokenizer)
    whole, _ = take(from_corpus(tmp_path / "corpus"), tokenizer, 200)
    for cut in (3, 90, 199):
        _, state = take(from_corpus(tmp_path / "corpus"), tokenizer, cut)
        moved = tmp_path / f"moved{cut}"
        (tmp_path / "corpus").rename(moved)
        rest, _ = take(from_corpus(moved), tokenizer, 200 - cut, state=state)
        moved.rename(tmp_path / "corpus")
        assert np.array_equal(rest, whole[cut:])
    prepare(config_of(text, min_chars=20), tmp_path / "other", tokenizer)
    with pytest.raises(UserError, match="the text is not the one"):
        take(from_corpus(tmp_path / "other"), tokenizer, 1, state=state)


@pytest.mark.parametrize("val_split", ["", "validation"])
def test_a_data_set_of_the_hub(tokenizer, tmp_path, monkeypatch, val_split):
    """Its processes take whole files each, where there are as many."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "stories"
    folder.mkdir()
    for shard in range(4):
        rows = [f"Story {shard} {i} " + "word " * (i % 5) for i in range(50)]
        pq.write_table(pa.table({"text": rows}), folder / f"train-0000{shard}-of-00004.parquet")
    pq.write_table(pa.table({"text": ["held out"] * 30}), folder / "validation-00000-of-00001.parquet")
    options = {"val_split": val_split, "val_fraction": 0.2, "shuffle_buffer": 8, "cache": False}
    config = DataConfig(kind="hub", path=str(folder), **options)
    work, report = prepare(config, tmp_path / "corpus", tokenizer)
    assert len(work.shards) == 4 + bool(val_split)
    same_as_text(config, tmp_path / "corpus", tokenizer, 40)
    expected = validation_text(config, tokenizer, SEQ, 4, 5).blocks
    assert np.array_equal(validation_text(from_corpus(tmp_path / "corpus"), tokenizer, SEQ, 4, 5).blocks, expected)
    assert report["sources"][0]["validation"]["documents"] == (30 if val_split else 200 - report["sources"][0]["taken"])


def test_a_corpus_is_mixed_with_conversations(text, tokenizer, tmp_path):
    """As ``slm tune`` does with the text of its base. The tokenizer then has more special tokens."""
    prepare(config_of(text, cache_dir=str(tmp_path)), tmp_path / "corpus", tokenizer)
    chats = tmp_path / "chats.jsonl"
    chats.write_text("".join(json.dumps({"instruction": f"Say {n}", "output": "yes " * n}) + "\n" for n in range(1, 9)))

    def mixed(files):
        sources = [
            SourceConfig(kind="chat", files=[str(chats)], weight=0.8),
            SourceConfig(kind="files", files=[str(files)], weight=0.2, validated=False),
        ]
        return DataConfig(kind="mixture", sources=sources, val_fraction=0.1, shuffle_buffer=8)

    with_chat, _ = chat_setup(tokenizer, mixed(text))
    assert with_chat.fingerprint != tokenizer.fingerprint
    expected, _ = take(mixed(text), with_chat, 40)
    found, _ = take(mixed(tmp_path / "corpus"), with_chat, 40)
    assert np.array_equal(found, expected)


def test_worker_processes_read_it(text, tokenizer, tmp_path):
    prepare(config_of(text), tmp_path / "corpus", tokenizer)
    found, _ = take(from_corpus(tmp_path / "corpus"), tokenizer, 20, workers=2)
    ranks = [take(config_of(text), tokenizer, 20, micro_batch=1, rank=rank, world_size=2)[0] for rank in range(2)]
    assert np.array_equal(found, [np.concatenate(rows) for rows in zip(*ranks, strict=True)])


def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_whatever_a_kill_leaves_the_same_command_makes_the_same_of_it(text, tokenizer, tmp_path):
    """The files of a corpus come in a known order, so that every state that a kill can leave is the first of them, and
    perhaps a temporary one."""
    folder, config = tmp_path / "corpus", config_of(text, dedup="near")
    work, _ = prepare(config, folder, tokenizer)
    whole = content(folder)
    shards = [f"shards/{n:05d}.{end}" for n in reversed(range(len(work.shards))) for end in ("tokens", "index", "json")]
    made = [name for name in whole if name.startswith("tokenizer/")]
    order = [*made, "slm-plan.json", "duplicates.npz", *shards, "report.json", "report.md", "slm-corpus.json"]
    assert sorted(order) == sorted(whole)
    for kept in range(0, len(order), 4):
        for name in order[kept:]:
            (folder / name).unlink()
        (folder / "shards/.00001.tokens.x.tmp").write_text("half")
        (folder / ".tokenizer.tmp").mkdir()
        before = {path: path.stat().st_mtime_ns for path in folder.glob("shards/*.json")}
        work_module.remove_remains(folder)
        prepare(config, folder, tokenizer)
        assert content(folder) == whole
        assert all(path.stat().st_mtime_ns == at for path, at in before.items()), "a shard was made twice"


def test_its_text_is_there_as_text(text, tokenizer, tmp_path):
    """Runs keep samples of text for export, and a budget tries vocabularies on some."""
    config = config_of(text)
    prepare(config, tmp_path / "corpus", tokenizer)
    for split in ("train", "validation"):
        found = list(sample_documents(from_corpus(tmp_path / "corpus"), split, 10_000, 5))
        assert found == list(sample_documents(config, split, 10_000, 5))


def test_what_was_left_out_is_counted_and_shown(text, tokenizer, tmp_path):
    rows = [*(text / "0.jsonl").read_text().splitlines(), '{"text": "torn', '{"no": 1}', '{"text": "short"}']
    (text / "0.jsonl").write_text("\n".join([*rows, rows[1], json.dumps({"text": "mail me@example.org " * 9})]) + "\n")
    config = config_of(text, on_bad="skip", min_chars=15, dedup="exact", mask_personal=True)
    config = dataclasses.replace(config, cache_dir=str(tmp_path / "cache"))
    _, report = prepare(config, tmp_path / "corpus", tokenizer)
    (source,) = report["sources"]
    left_out = source["left_out"]
    assert (left_out["not a line of JSON"], left_out["no key 'text'"], left_out["empty"]) == (1, 1, 6 + 43 + 6)
    assert left_out["min_chars"] > 1
    assert left_out["duplicates"] >= 1
    assert source["changed"] == {"[email]": 9}
    assert source["read"] == 380 + 5 == source["taken"] + sum(left_out.values())
    (plan,) = make_plans(from_corpus(tmp_path / "corpus"), "train")
    found, expected = account(plan), account(make_plans(config, "train")[0])
    assert (found.read, found.taken, found.left_out) == (expected.read, expected.taken, expected.left_out)
    tokens = sum(map(len, take_all(from_corpus(tmp_path / "corpus", max_epochs=1, shuffle_buffer=0), tokenizer)))
    assert 0 <= found.tokens - tokens <= SEQ
    page = (tmp_path / "corpus" / "report.md").read_text()
    assert "| left out: duplicates |" in page
    assert f"{text}/0.jsonl:42" in page


@pytest.mark.parametrize("mode", ["exact", "near"])
def test_the_duplicates_are_those_that_are_found_without_it(text, tokenizer, tmp_path, mode):
    """Also of a second source, of validation text, and up to ``dedup_max_docs``."""
    apart = tmp_path / "apart.jsonl"
    apart.write_text("".join((text / "1.jsonl").read_text().splitlines(keepends=True)[::20]))
    sources = [
        SourceConfig(kind="files", files=[str(text)], val_files=[str(apart)]),
        SourceConfig(kind="files", files=[str(text / "0.jsonl")], validated=False),
    ]
    options = {"dedup": mode, "dedup_threshold": 0.5, "cache_dir": str(tmp_path / "cache"), "val_fraction": 0.1}
    for max_docs in (1_000_000, 150):
        config = DataConfig(kind="mixture", sources=sources, dedup_max_docs=max_docs, **options)
        work, report = prepare(config, tmp_path / str(max_docs), tokenizer)
        plans = make_plans(config, "train")
        for number, plan in enumerate(plans):
            own = next(each.plan for each in work.texts if each.source == number and not each.own_validation)
            found, expected = duplicates.load(own), duplicates.load(plan)
            assert found.keys() == expected.keys()
            assert all(np.array_equal(found[file], expected[file]) for file in expected)
        assert sum(each["left_out"].get("duplicates", 0) for each in report["sources"]) > 5
        assert not (tmp_path / str(max_docs) / "signatures").exists()


def take_all(config, tokenizer):
    blocks = []
    with Loader(config, tokenizer, seq_len=SEQ, micro_batch=1, seed=5, workers=0) as loader:
        try:
            for batch in loader:
                blocks.append(batch[0][:-1])
        except UserError:
            return blocks


def test_a_record_that_stops_a_run_stops_this(text, tokenizer, tmp_path):
    with open(text / "1.jsonl", "a") as file:
        file.write('{"text": "torn')
    with pytest.raises(UserError, match=r"1\.jsonl:301: not a line of JSON.*data\.on_bad=skip"):
        prepare(config_of(text), tmp_path / "corpus", tokenizer)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"min_chars": 9}, "data.min_chars changes the text, and .* was prepared with data.min_chars=0: leave it out"),
        ({"val_fraction": 0.2}, "data.val_fraction changes the text, .* data.val_fraction=0.1"),
        ({"dedup": "exact"}, "data.dedup changes the text"),
        ({"val_files": ["x.txt"]}, "data.val_files changes the text"),
    ],
)
def test_options_that_change_the_text_are_refused(text, tokenizer, tmp_path, option, message):
    prepare(config_of(text), tmp_path / "corpus", tokenizer)
    with pytest.raises(UserError, match=message):
        make_plans(from_corpus(tmp_path / "corpus", **option), "train")


def test_an_incomplete_corpus_another_tokenizer_and_damage_are_refused(text, tokenizer, tmp_path):
    config, folder = config_of(text), tmp_path / "corpus"
    begin(config, folder, lambda: tokenizer, flat(config))
    with pytest.raises(UserError, match=r"not a complete corpus \(0 shards are made\): type the slm prepare"):
        make_plans(from_corpus(folder), "train")
    prepare(config, folder, tokenizer)
    other = make_tokenizer(TokenizerConfig(kind="bpe", vocab_size=280), lambda: iter([story(0, 0)] * 9))
    with pytest.raises(
        UserError, match="holds the ids of bpe-300, and the tokenizer of this run, bpe-280, makes others"
    ):
        validation_text(from_corpus(folder), other, SEQ, 2, 5)
    with pytest.raises(UserError, match="is a prepared corpus, which is all of a source: name it alone"):
        make_plans(DataConfig(kind="files", files=[str(folder), str(text)]), "train")
    (folder / "shards/00001.tokens").write_bytes(b"")
    (folder / "slm-corpus.json").touch()
    with pytest.raises(UserError, match=r"00001\.tokens has 0 bytes, and should have .*: copy the corpus again"):
        make_plans(from_corpus(folder), "train")


def test_what_cannot_be_prepared_is_refused(text, tokenizer, tmp_path):
    def refused(config, folder, message):
        with pytest.raises(UserError, match=message):
            begin(config, folder, lambda: tokenizer, flat(config))

    config, folder = config_of(text), tmp_path / "corpus"
    refused(DataConfig(kind="tales"), folder, "data=tales is made as it is read and never ends")
    refused(DataConfig(kind="chat", files=["x.jsonl"]), folder, "slm prepare is for text")
    refused(config, text, r"holds other things \(.*\.jsonl.*\): name a new folder")
    prepare(config, folder, tokenizer)
    refused(from_corpus(folder), tmp_path / "again", "is prepared already")
    refused(
        dataclasses.replace(config, min_chars=3), folder, "other options: data.min_chars was 0, now 3. Give the same"
    )
    with open(text / "0.jsonl", "a") as file:
        file.write('{"text": "more"}\n')
    refused(config, folder, "the text has changed since .* was begun")
