"""Everything together at the loader: shares of tokens, caps, filters, duplicates, caches; left and resumed anywhere."""

import gzip
import json
import random
import re
from collections import Counter

import numpy as np
import pytest

from slm.data.config import DataConfig, SourceConfig, TokenizerConfig
from slm.data.errors import UserError
from slm.data.sources.contents import unit_hash
from slm.data.sources.documents import iter_documents
from slm.data.stream import blocks, token_cache
from slm.data.stream.loader import EndOfTextError, Loader, validation_text
from slm.data.tales.story import story
from slm.data.tales.words import ANIMALS
from slm.data.tokenizers.make import make_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    texts = [*(story(0, index) for index in range(200)), "0123456789 gamma delta omega " * 20]
    return make_tokenizer(TokenizerConfig(kind="bpe", vocab_size=400), lambda: iter(texts))


@pytest.fixture
def corpus(tmp_path):
    """Folders a and b, in several files and formats, with copies, near copies and documents that filters refuse."""
    rng = random.Random(3)
    for folder in "ab":
        (tmp_path / folder).mkdir()
        for part in range(3):
            rows = [f"{folder} {part} {i} " + " ".join(rng.choices(ANIMALS, k=rng.randrange(5, 40))) for i in range(40)]
            rows += [rows[3], rows[5].upper(), rows[7] + " end", "no", "1 2 3 4 5 6 7 8 9 10 11 12"]
            rng.shuffle(rows)
            content = "".join(json.dumps({"text": row}) + "\n" for row in rows).encode()
            name = tmp_path / folder / f"{part}.jsonl"
            name.with_suffix(".jsonl.gz").write_bytes(gzip.compress(content)) if part == 1 else name.write_bytes(
                content
            )
    return tmp_path


def mixture(corpus, **options):
    """Two local sources, one of which may be read only twice, and the endless stories."""
    sources = [
        SourceConfig(kind="files", files=[str(corpus / "a")], weight=2.0, max_epochs=2),
        SourceConfig(kind="files", files=[str(corpus / "b")], weight=1.0),
        SourceConfig(kind="tales", weight=0.5),
    ]
    options = {"val_fraction": 0.1, "shuffle_buffer": 16, "cache_dir": str(corpus / "cache"), "cache": False} | options
    return DataConfig(kind="mixture", sources=sources, **options)


EVERYTHING = {"dedup": "near", "min_chars": 10, "min_letters": 0.5, "script": "latin", "cache": True}


def drain(batches):
    """All batches up to the end of the text."""
    found = []
    with pytest.raises(EndOfTextError, match=r"used up, every source has been read data\.max_epochs times"):
        found.extend(batches)
    return found


def loader(config, tokenizer, **options):
    return Loader(config, tokenizer, **({"seq_len": 32, "micro_batch": 2, "seed": 9, "workers": 0} | options))


@pytest.fixture
def small_segments(monkeypatch):
    monkeypatch.setattr(token_cache, "SEGMENT_RECORDS", 20)
    monkeypatch.setattr(blocks, "FIRST_GROUP", 32 * 8)
    monkeypatch.setattr(blocks, "LARGEST_GROUP", 32 * 16)


@pytest.mark.parametrize("options", [{}, EVERYTHING], ids=["plain", "everything"])
@pytest.mark.parametrize("world", [1, 2])
def test_resumes_bit_for_bit_in_this_process(corpus, tokenizer, options, world, small_segments):
    """Left after any batch, five times within one epoch, in the middle of the second, after a source has ended."""
    config = mixture(corpus, **options)
    for rank in range(world):
        shard = {"rank": rank, "world_size": world}
        whole = loader(config, tokenizer, **shard)
        expected, states = [], []
        for _ in range(700 // world):
            expected.append(next(whole))
            states.append(json.dumps(whole.state_dict()))
        for after in [0, 1, 2, 3, *random.Random(rank).sample(range(4, len(states) - 1), 8)]:
            part = loader(config, tokenizer, **shard)
            part.load_state_dict(json.loads(states[after]))
            assert np.array_equal([next(part) for _ in range(5)], expected[after + 1 : after + 6]) or after + 6 > len(
                states
            )
        found, state = [], None
        for cut in [2, 5, 9, 14, 20, 33, 90, 120, len(expected)]:
            part = loader(config, tokenizer, **shard)
            if state:
                part.load_state_dict(state)
            found += [next(part) for _ in range(cut - len(found))]
            state = json.loads(json.dumps(part.state_dict()))
        assert np.array_equal(found, expected)
        first = json.loads(states[-1])["streams"][0]["start"]["documents"]
        assert first["ended"][0], "the capped source is to end within the test"
        assert first["streams"][1]["start"]["epoch"] >= 1
        assert len(states[-1]) < 3000


@pytest.mark.parametrize(("workers", "world"), [(1, 1), (3, 1), (2, 2)])
def test_resumes_bit_for_bit_with_workers(corpus, tokenizer, workers, world):
    config = mixture(corpus, **EVERYTHING)
    for rank in range(world):
        options = {"workers": workers, "rank": rank, "world_size": world, "micro_batch": 3}
        with loader(config, tokenizer, **options) as whole:
            expected = [next(whole) for _ in range(60)]
        found, state = [], None
        for cut in [3, 21, 60]:
            with loader(config, tokenizer, **options) as part:
                if state:
                    part.load_state_dict(state)
                found += [next(part) for _ in range(cut - len(found))]
                state = json.loads(json.dumps(part.state_dict()))
        assert np.array_equal(found, expected)


def marked(tmp_path, name, count, words):
    path = tmp_path / f"{name}.jsonl"
    path.write_text("".join(json.dumps({"text": f"{name} " * (words + i % 2)}) + "\n" for i in range(count)))
    return str(path)


def test_shares_are_of_tokens(tmp_path, tokenizer):
    """Digits take a token each and words less per byte: shares of bytes or of documents would be others."""
    words = SourceConfig(kind="files", files=[marked(tmp_path, "gamma", 300, 200)], weight=0.25)
    digits = SourceConfig(kind="files", files=[marked(tmp_path, "7", 2000, 7)], weight=0.75)
    config = DataConfig(kind="mixture", sources=[words, digits], val_fraction=0.001)
    eot, seven = tokenizer.eot_id, {*tokenizer.encode("7 7 7")}
    ends = {kind: len(tokenizer.encode(text)) + 1 for kind, text in (("w", "gamma " * 200), ("d", "7 " * 7))}
    ids = np.concatenate(
        [batch[:, :-1].ravel() for batch, _ in zip(loader(config, tokenizer), range(600), strict=False)]
    )
    numbers = int(np.isin(ids, [*seven]).sum())
    counts = {"d": numbers / (ends["d"] - 1), "w": (np.sum(ids != eot) - numbers) / (ends["w"] - 1)}
    given = {kind: counts[kind] * ends[kind] for kind in "wd"}
    assert given["w"] / (given["w"] + given["d"]) == pytest.approx(0.25, abs=0.02)
    assert counts["d"] > 10 * counts["w"]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_text_ends_where_every_source_has_its_cap(tmp_path, tokenizer, workers):
    rows = [f"document {i}, with some words in it" for i in range(60)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    config = DataConfig(kind="files", files=[str(tmp_path)], val_fraction=0.1, max_epochs=3)
    with loader(config, tokenizer, workers=workers) as batches:
        found = drain(batches)
        state = batches.state_dict()
        assert drain(batches) == []
    assert all(batch.shape == (2, 33) for batch in found)
    with loader(config, tokenizer, workers=workers) as again:
        again.load_state_dict(state)
        assert drain(again) == []
    seen = sum(batch[:, :-1].size for batch in found)
    total = 3 * sum(len(tokenizer.encode(text)) + 1 for text in iter_documents(config, "train", 1))
    assert total - 33 * 2 * max(1, workers) <= seen <= total


def test_less_than_a_batch_is_said_to_be_too_little(tmp_path, tokenizer):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    config = DataConfig(kind="files", files=[str(tmp_path)], val_fraction=0.1, max_epochs=1)
    with pytest.raises(UserError, match="there is not one batch of text"):
        next(loader(config, tokenizer))


def test_epochs_come_in_other_orders(tmp_path, tokenizer):
    for part in range(6):
        rows = [f"<{part}.{i}>" for i in range(10)]
        (tmp_path / f"{part}.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    for buffer in (0, 8):
        config = DataConfig(kind="files", files=[str(tmp_path)], val_fraction=0.1, max_epochs=4, shuffle_buffer=buffer)
        documents = list(iter_documents(config, "train", 1))
        found = [id for batch in drain(loader(config, tokenizer, micro_batch=1, seq_len=4)) for id in batch[0, :-1]]
        names = re.findall(r"<\d\.\d>", tokenizer.decode(found))
        count = len(documents)
        epochs = [names[i * count : (i + 1) * count] for i in range(3)]
        assert all(Counter(epoch) == Counter(documents) for epoch in epochs) or buffer
        assert len({tuple(epoch) for epoch in epochs}) == 3


@pytest.mark.parametrize("options", [{}, EVERYTHING], ids=["plain", "everything"])
def test_no_held_out_document_reaches_a_batch(corpus, tokenizer, options):
    config = mixture(corpus, **options)
    held_out = set(iter_documents(config, "validation", 9))
    own = {text for text in held_out if re.match(r"[abAB] \d ", text)}
    assert own
    trained, rest = set(), []
    batches = loader(config, tokenizer)
    for _ in range(500):
        for id in next(batches)[:, :-1].ravel().tolist():
            if id == tokenizer.eot_id:
                trained.add(tokenizer.decode(rest))
                rest = []
            else:
                rest.append(id)
    assert len(trained) > 100
    assert not trained & held_out
    if options:
        assert not {text.casefold() for text in trained} & {text.casefold() for text in held_out}
        assert not any("1 2 3 4 5" in text or text == "no" for text in trained)
    assert unit_hash(next(iter(own))) < 1
    assert len(validation_text(config, tokenizer, 32, 3, 9).blocks) == 3
