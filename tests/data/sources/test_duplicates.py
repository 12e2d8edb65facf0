"""Duplicates: what counts as one, that the first stays, and that the list survives whatever happens to its file."""

import io
import json
import os
import random
import sys
from pathlib import Path

import numpy as np
import pytest

from slm.data.config import DataConfig, SourceConfig
from slm.data.quality.repeats.in_memory import Finder
from slm.data.quality.repeats.sketch import shingles, sketches
from slm.data.quality.words import normalized
from slm.data.sources.contents import unit_hash
from slm.data.sources.documents import iter_documents, make_plans
from slm.data.sources.duplicates import load
from slm.data.storage import NoRoomError, locked, read_checked
from slm.data.tales.story import story

WORDS = [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in "bdklmnrst"]


def article(seed, n_words=300):
    return " ".join(random.Random(seed).choices(WORDS, k=n_words))


def changed(text, n_changes, seed=0):
    words = text.split()
    for place in random.Random(seed).sample(range(len(words)), n_changes):
        words[place] = "altered"
    return " ".join(words)


def write(path, rows):
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    return str(path)


def config(*paths, **options):
    options = {"val_fraction": 0.1, "shuffle_buffer": 4, "cache_dir": str(paths[0]) + ".cache"} | options
    return DataConfig(kind="files", files=[str(path) for path in paths], **options)


def both_splits(options):
    return [text for split in ("train", "validation") for text in iter_documents(options, split, 1)]


def jaccard(one, other):
    a, b = set(shingles(normalized(one))), set(shingles(normalized(other)))
    return len(a & b) / len(a | b)


def test_exact_is_the_same_words():
    finder = Finder("exact", 0.8)
    texts = ["A b  c", "a B\nc", "a b d", "a b c", "é", "e\u0301", "x"]
    assert finder.add(texts[:3]) == ["", "exact", ""]
    assert finder.add(texts[3:]) == ["exact", "", "exact", ""]


def test_near_finds_what_overlaps_and_nothing_else():
    """Documents with 2 words of 300 altered overlap by about 0.93; with 60 altered by about 0.2."""
    originals = [article(seed) for seed in range(200)]
    slightly = [changed(text, 2) for text in originals]
    much = [changed(text, 60) for text in originals]
    assert min(map(jaccard, originals, slightly)) > 0.92
    assert max(map(jaccard, originals, much)) < 0.5
    finder = Finder("near", 0.8)
    assert finder.add(originals) == [""] * 200
    assert finder.add(slightly).count("near") >= 198
    assert finder.add(much) == [""] * 200
    assert finder.add(originals[:3]) == ["exact"] * 3


def test_near_duplicates_are_looked_for_among_a_number_of_documents():
    originals = [article(seed) for seed in range(20)]
    finder = Finder("near", 0.8, most_near=20)
    assert finder.add(originals[:10] + [changed(text, 2) for text in originals[:10]]).count("near") == 10
    assert finder.is_full
    assert finder.add([changed(originals[0], 3), originals[0]]) == ["", "exact"]


def test_the_threshold_counts():
    originals = [article(seed) for seed in range(100)]
    altered = [changed(text, 12) for text in originals]  # about 0.66
    strict, loose = Finder("near", 0.85), Finder("near", 0.5)
    for finder in (strict, loose):
        finder.add(originals)
    assert strict.add(altered).count("near") <= 5
    assert loose.add(altered).count("near") >= 95


def test_short_texts_and_other_scripts():
    finder = Finder("near", 0.8)
    assert finder.add(["one two", "two one", "", "...", "one two"]) == ["", "", "", "", "exact"]
    chinese = "天地玄黃宇宙洪荒日月盈昃辰宿列張寒來暑往秋收冬藏" * 3
    assert finder.add([chinese, chinese[:-1] + "也", "\ud800"]) == ["", "near", ""]


@pytest.mark.parametrize("mode", ["exact", "near"])
@pytest.mark.parametrize("parts", [1, 3])
def test_one_of_each_is_left(tmp_path, mode, parts):
    originals = [article(seed) for seed in range(40)]
    repeats = [f"  {text.upper()}" for text in originals[::3]]
    near = [changed(text, 1) for text in originals[::4]]
    rows = [*originals, *repeats, *near]
    for part in range(parts):
        write(tmp_path / f"{part}.jsonl", rows[part * len(rows) // parts : (part + 1) * len(rows) // parts])
    found = both_splits(config(tmp_path, dedup=mode, cache_dir=str(tmp_path.with_suffix(".cache"))))
    assert sorted(found) == sorted(originals + (near if mode == "exact" else []))
    assert sorted(both_splits(config(tmp_path))) == sorted(rows)


def test_the_first_stays_whatever_the_order_of_the_epoch(tmp_path):
    texts = [article(seed) for seed in range(30)]
    write(tmp_path / "0.jsonl", texts)
    write(tmp_path / "1.jsonl", [changed(text, 1) for text in texts])
    options = config(tmp_path, dedup="near", cache_dir=str(tmp_path) + ".cache")
    for seed in range(5):
        found = [t for split in ("train", "validation") for t in iter_documents(options, split, seed)]
        assert sorted(found) == sorted(texts)


def test_across_the_sources_of_a_mixture(tmp_path):
    texts = [article(seed) for seed in range(30)]
    a, b = write(tmp_path / "a.jsonl", texts[:20]), write(tmp_path / "b.jsonl", texts[10:])
    sources = [SourceConfig(kind="files", files=[path]) for path in (a, b)]
    options = DataConfig(
        kind="mixture", sources=sources, dedup="exact", val_fraction=0.1, cache_dir=str(tmp_path / "cache")
    )
    assert sorted(both_splits(options)) == sorted(texts)


def test_training_text_that_repeats_validation_text_is_left_out(tmp_path):
    texts = [article(seed) for seed in range(30)]
    copies = [changed(text, 1) for text in texts[:5]]
    train, val = write(tmp_path / "train.jsonl", texts), write(tmp_path / "val.jsonl", copies)
    options = config(train, val_files=[val], dedup="near")
    assert sorted(iter_documents(options, "train", 1)) == sorted(texts[5:])
    assert sorted(iter_documents(options, "validation", 1)) == sorted(copies)


def test_copies_of_held_out_text_are_not_trained_on(tmp_path):
    """Two texts that differ in case fall on either side of the hash; without duplicates they cannot."""
    texts = [article(seed, 50) for seed in range(300)]
    path = write(tmp_path / "a.jsonl", [*texts, *(text.upper() for text in texts)])
    plain = config(path, val_fraction=0.3)
    train, validation = (list(iter_documents(plain, split, 1)) for split in ("train", "validation"))
    assert {normalized(text) for text in train} & {normalized(text) for text in validation}
    clean = config(path, val_fraction=0.3, dedup="exact")
    train, validation = (list(iter_documents(clean, split, 1)) for split in ("train", "validation"))
    assert not {normalized(text) for text in train} & {normalized(text) for text in validation}
    assert len(train) + len(validation) == 300


def test_filters_come_first(tmp_path):
    text = article(1)
    path = write(tmp_path / "a.jsonl", [text + " ...!", text, *(article(seed) for seed in range(2, 20))])
    options = config(path, dedup="near", max_chars=len(text) + 2)
    assert text in both_splits(options)


def test_only_so_many_documents_are_compared(tmp_path, capsys):
    texts = [article(seed, 20) for seed in range(400)]
    path = write(tmp_path / "a.jsonl", [*texts, *texts])
    found = both_splits(config(path, dedup="exact", dedup_max_docs=500))
    assert len(found) == 700
    output = capsys.readouterr().out
    assert output.count("500 documents compared: 100 exact and 0 near duplicates are left out") == 1
    assert "data.dedup_max_docs" in output


def test_the_list_is_made_once_and_again_where_it_is_damaged(tmp_path, capsys):
    path = write(tmp_path / "a.jsonl", [article(seed, 20) for seed in range(20)] * 2)
    options = config(path, dedup="exact")
    first = both_splits(options)
    assert capsys.readouterr().out.count("documents compared") == 1
    (listed,) = (tmp_path / "a.jsonl.cache" / "duplicates").glob("*.npz")
    content = bytearray(listed.read_bytes())
    content[len(content) // 2] ^= 4
    listed.write_bytes(content)
    assert both_splits(options) == first
    assert capsys.readouterr().out.count("documents compared") == 1
    assert make_plans(options, "train")[0].fingerprint != make_plans(config(path), "train")[0].fingerprint


@pytest.mark.parametrize("seed", range(6))
def test_no_held_out_document_is_trained_on(tmp_path, seed):
    """Sources that hold out different shares of the same documents, with and without separate validation files."""
    rng = random.Random(seed)
    pool = [article(i, rng.randrange(5, 60)) for i in range(120)]
    sources = []
    for number in range(3):
        rows = rng.choices(pool, k=rng.choice([2, 5, 40, 400]))
        path = write(tmp_path / f"{number}.jsonl", [*rows, f"own text {number}", f"other text {number}"])
        val = [write(tmp_path / f"val{number}.jsonl", rng.sample(pool, 4))] if rng.random() < 0.4 else []
        sources.append(SourceConfig(kind="files", files=[path], val_files=val, weight=rng.random() + 0.1))
    for dedup in ("none", "exact"):
        options = DataConfig(
            kind="mixture",
            sources=sources,
            val_fraction=rng.choice([0.01, 0.2]),
            dedup=dedup,
            cache_dir=str(tmp_path / "cache"),
        )
        train, validation = (set(iter_documents(options, split, seed)) for split in ("train", "validation"))
        assert validation
        assert train
        assert not {unit_hash(text) for text in train} & {unit_hash(text) for text in validation}


def test_a_file_that_was_only_touched_keeps_its_identity(tmp_path, capsys):
    """The list is made again, as the text might be another; the same list is the same stream, to be resumed."""
    path = write(tmp_path / "a.jsonl", [article(seed, 20) for seed in range(20)] * 2)
    before = make_plans(config(path, dedup="exact"), "train")[0].fingerprint
    os.utime(path, (1, 1))
    assert make_plans(config(path, dedup="exact"), "train")[0].fingerprint == before
    assert capsys.readouterr().out.count("documents compared") == 2
    other = write(tmp_path / "a.jsonl", [article(seed, 20) for seed in range(20, 40)] + [article(5, 20)] * 20)
    assert make_plans(config(other, dedup="exact"), "train")[0].fingerprint != before


def test_files_that_look_the_same_by_name_and_size_are_two(tmp_path):
    """``split -b`` leaves such parts in the folders of two sources."""
    for name, seed in (("a", 0), ("b", 100)):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "part.jsonl", [f"{seed + n:03d} " + "word " * 20 for n in range(40)])
    repeated = (tmp_path / "a" / "part.jsonl").read_text().splitlines()[5:15]
    lines = (tmp_path / "b" / "part.jsonl").read_text().splitlines()
    (tmp_path / "b" / "part.jsonl").write_text("\n".join([*repeated, *lines[10:]]) + "\n")
    assert len({os.path.getsize(tmp_path / name / "part.jsonl") for name in "ab"}) == 1
    sources = [SourceConfig(kind="files", files=[str(tmp_path / name)]) for name in "ab"]
    mixed = DataConfig(kind="mixture", sources=sources, dedup="exact", cache_dir=str(tmp_path / "c"), val_fraction=0.1)
    texts = both_splits(mixed)
    assert len(texts) == len(set(texts)) == 70
    plans = make_plans(mixed, "train")
    assert plans[0].corpus == plans[1].corpus
    assert [each.listed_as for each in make_plans(mixed, "validation")] == [each.listed_as for each in plans]


@pytest.mark.skipif(sys.platform == "win32", reason="it needs a limit on the size of files")
@pytest.mark.parametrize("mode", ["exact", "near"])
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, mode):
    """A limit on the size of files takes the disk's place."""
    import resource

    path = write(tmp_path / "a.jsonl", [article(seed, 20) for seed in range(600)] * 2)
    options = config(path, dedup=mode)
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, usual[1]))
    try:
        with pytest.raises(NoRoomError, match=r"cannot be written .* of disk for each document .*data\.dedup=none"):
            make_plans(options, "train")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    folder = tmp_path / "a.jsonl.cache" / "duplicates"
    assert not list(folder.glob("*.work"))
    assert len(both_splits(options)) == 600


def test_what_an_ended_process_left_is_removed(tmp_path):
    path = write(tmp_path / "a.jsonl", [article(seed, 20) for seed in range(20)])
    folder = tmp_path / "a.jsonl.cache" / "duplicates"
    left, in_use = folder / "0.work", folder / "1.work"
    for each in (left, in_use):
        each.mkdir(parents=True)
        (each / "sketches").write_text("much")
    with locked(folder / "1.lock"):
        make_plans(config(path, dedup="exact"), "train")
    assert not left.exists()
    assert in_use.exists()


def test_a_list_of_many_files_and_corpora_is_read_as_it_was_written(tmp_path):
    """In the form that earlier versions wrote, so that their lists and positions stay valid."""
    rng = random.Random(5)
    for part in range(12):
        rows = [f"text {rng.randrange(30)}" for _ in range(rng.choice([0, 1, 40]))]
        write(tmp_path / f"{part:02d}.jsonl", rows or [""])
    options = config(tmp_path, dedup="exact", cache_dir=str(tmp_path.with_suffix(".cache")))
    (plan,) = make_plans(options, "train")
    seen, expected = set(), {}
    for number, file in enumerate(plan.files):
        for record, line in enumerate(Path(file).read_text().splitlines()):
            text = json.loads(line)["text"]
            if text and text in seen:
                expected.setdefault(number, []).append(record)
            seen.add(text)
    assert {file: found.tolist() for file, found in load(plan).items()} == expected
    content = read_checked(Path(plan.duplicates))
    before = io.BytesIO()
    pairs = [(file, record) for file, found in expected.items() for record in found]
    np.savez(before, **{plan.listed_as: np.array(list(zip(*pairs, strict=True)), dtype=np.uint64)})
    assert content == before.getvalue()


def test_sketches_do_not_depend_on_how_many_are_made_at_once(monkeypatch):
    texts = [normalized(story(1, each) * (1 + each % 3)) for each in range(9)]
    alone = np.concatenate([sketches([text]) for text in texts])
    for chars in (1, 2000, 1 << 20):
        monkeypatch.setattr("slm.data.quality.repeats.sketch._CHARS_AT_ONCE", chars)
        assert (sketches(texts) == alone).all()
    assert sketches([]).shape == (0, 128)
