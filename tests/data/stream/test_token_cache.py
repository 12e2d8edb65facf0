"""The token cache: the stream it gives is the stream without it, whatever happens to its files."""

import gzip
import json
import random
import shutil

import numpy as np
import pytest

from slm.data import storage
from slm.data.config import DataConfig, TokenizerConfig
from slm.data.errors import UserError
from slm.data.stream import token_cache
from slm.data.stream.loader import Loader
from slm.data.tales.story import story
from slm.data.tokenizers.make import make_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer(
        TokenizerConfig(kind="bpe", vocab_size=300), lambda: (story(0, index) for index in range(300))
    )


@pytest.fixture(autouse=True)
def small_segments(monkeypatch):
    monkeypatch.setattr(token_cache, "SEGMENT_RECORDS", 16)
    monkeypatch.setattr(token_cache, "SEGMENT_CHARS", 2000)


@pytest.fixture
def corpus(tmp_path):
    """Three files of 50 records, one of them compressed; empty ones among them."""
    folder = tmp_path / "text"
    folder.mkdir()
    rng = random.Random(1)
    for part in range(3):
        rows = [f"{part} {i} " + "the cat sat. " * rng.randrange(12) if i % 7 else "" for i in range(50)]
        content = "".join(json.dumps({"text": row}) + "\n" for row in rows).encode()
        if part == 1:
            (folder / "1.jsonl.gz").write_bytes(gzip.compress(content))
        else:
            (folder / f"{part}.jsonl").write_bytes(content)
    return folder


def loader(corpus, tokenizer, store, workers=0, **options):
    config = DataConfig(
        kind="files",
        files=[str(corpus)],
        val_fraction=0.1,
        cache_dir=str(store),
        **({"cache": True, "shuffle_buffer": 8} | options),
    )
    return Loader(config, tokenizer, seq_len=32, micro_batch=2, seed=5, workers=workers)


def take(batches, count):
    with batches:
        return [next(batches) for _ in range(count)]


def segments(store):
    return sorted(store.rglob("*.tokens"))


@pytest.mark.parametrize("options", [{}, {"min_chars": 20, "dedup": "exact"}, {"shuffle_buffer": 0}])
def test_the_same_batches_with_a_cold_cache_a_warm_one_and_none(corpus, tokenizer, tmp_path, options):
    shared = {key: value for key, value in options.items() if key != "shuffle_buffer"}
    expected = take(loader(corpus, tokenizer, tmp_path / "none", cache=False, **shared), 120)
    assert not segments(tmp_path / "none")
    for _ in ("cold", "warm"):
        assert np.array_equal(take(loader(corpus, tokenizer, tmp_path / "store", **shared), 120), expected)
    assert len(segments(tmp_path / "store")) > 6


def test_workers_share_one_cache(corpus, tokenizer, tmp_path):
    expected = take(loader(corpus, tokenizer, tmp_path, workers=2, cache=False), 60)
    assert np.array_equal(take(loader(corpus, tokenizer, tmp_path / "a", workers=2), 60), expected)


def test_a_position_holds_with_and_without_the_cache(corpus, tokenizer, tmp_path):
    """Also where the cache is switched on, switched off or deleted between two starts, in the middle of anything."""
    expected = take(loader(corpus, tokenizer, tmp_path, cache=False), 150)
    found, state = [], None
    for step, (cut, on) in enumerate([(3, True), (17, False), (40, True), (41, True), (90, False), (150, True)]):
        store = tmp_path / f"store{step % 2}"
        if step == 3:
            shutil.rmtree(tmp_path / "store0")
        with loader(corpus, tokenizer, store, cache=on) as batches:
            if state:
                batches.load_state_dict(state)
            found += [next(batches) for _ in range(cut - len(found))]
            state = json.loads(json.dumps(batches.state_dict()))
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "missing"])
def test_a_damaged_segment_is_found_and_made_again(corpus, tokenizer, tmp_path, damage, capfd):
    expected = take(loader(corpus, tokenizer, tmp_path), 100)
    rng = random.Random(2)
    for path in segments(tmp_path)[1::2]:
        content = bytearray(path.read_bytes())
        if damage == "flip":
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(bytes(content if damage == "flip" else content[: len(content) // 2 * (damage == "cut")]))
        if damage == "missing":
            path.unlink()
    assert np.array_equal(take(loader(corpus, tokenizer, tmp_path), 100), expected)
    errors = capfd.readouterr().err
    assert ("is damaged and is made again" in errors) == (damage != "missing")
    assert np.array_equal(take(loader(corpus, tokenizer, tmp_path), 100), expected)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("change", ["text", "filter", "tokenizer", "touch"])
def test_what_changes_the_tokens_has_another_cache(corpus, tokenizer, tmp_path, change):
    take(loader(corpus, tokenizer, tmp_path), 10)
    before = {path.parent for path in segments(tmp_path)}
    options = {}
    if change == "text":
        (corpus / "3.jsonl").write_text('{"text": "more"}\n')
    elif change == "touch":
        (corpus / "0.jsonl").touch()
    elif change == "filter":
        options["min_chars"] = 30
    else:
        tokenizer = make_tokenizer(TokenizerConfig(kind="bpe", vocab_size=280), lambda: iter(["the cat sat " * 99]))
    batches = take(loader(corpus, tokenizer, tmp_path, **options), 10)
    assert len({path.parent for path in segments(tmp_path)} - before) == 1
    assert np.array_equal(batches, take(loader(corpus, tokenizer, tmp_path, cache=False, **options), 10))


def test_auto_is_for_slow_sources(corpus, tokenizer, tmp_path):
    take(loader(corpus, tokenizer, tmp_path / "a", cache="auto"), 5)
    assert segments(tmp_path / "a")  # one of the files is compressed
    (corpus / "1.jsonl.gz").unlink()
    take(loader(corpus, tokenizer, tmp_path / "b", cache="auto"), 5)
    assert not segments(tmp_path / "b")


def test_no_room_for_a_cache(corpus, tokenizer, tmp_path, monkeypatch, capfd):
    """``auto`` goes on without a cache, wherever that happens; ``true`` is an error that names a way out."""
    expected = take(loader(corpus, tokenizer, tmp_path / "x", cache=False), 100)
    free = shutil.disk_usage(tmp_path).free
    monkeypatch.setattr(storage, "RESERVE", free + (1 << 30))
    assert np.array_equal(take(loader(corpus, tokenizer, tmp_path / "x", cache="auto"), 100), expected)
    assert capfd.readouterr().err.count("going on without a cache") == 1
    with pytest.raises(UserError, match=r"GB free, too little.*data\.cache_dir=DIR.*data\.cache=false"):
        take(loader(corpus, tokenizer, tmp_path / "x"), 5)


def test_the_disk_fills_up_on_the_way(corpus, tokenizer, tmp_path, monkeypatch, capfd):
    in_order = {"shuffle_buffer": 0}  # or the first group of blocks would read the whole text
    expected = take(loader(corpus, tokenizer, tmp_path / "x", cache=False, **in_order), 100)
    with loader(corpus, tokenizer, tmp_path, cache="auto", **in_order) as batches:
        found = [next(batches) for _ in range(12)]
        before = len(segments(tmp_path))
        monkeypatch.setattr(storage, "RESERVE", shutil.disk_usage(tmp_path).free + (1 << 30))
        found += [next(batches) for _ in range(88)]
    assert np.array_equal(found, expected)
    assert len(segments(tmp_path)) == before > 0
    assert capfd.readouterr().err.count("going on without a cache") == 1


def test_a_folder_that_cannot_be_made(corpus, tokenizer, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(UserError, match=r"cannot be written .*data\.cache_dir=DIR"):
        take(loader(corpus, tokenizer, tmp_path / "file"), 1)


def test_large_vocabularies_take_four_bytes():
    documents = [
        token_cache.Encoded(np.array([70_000, 5], "<u4"), 7),
        None,
        token_cache.Encoded(np.array([], "<u4"), 1),
    ]
    segment = token_cache.Segment(3, documents, {"any": [1]}, False)
    again = token_cache.Segment.from_bytes(segment.to_bytes("<u4"))
    assert (again.first, again.end, again.last) == (3, {"any": [1]}, False)
    assert [None if d is None else (d.ids.tolist(), d.chars) for d in again.documents] == [
        ([70_000, 5], 7),
        None,
        ([], 1),
    ]
    assert segment.to_bytes("<u4") == again.to_bytes("<u4")
