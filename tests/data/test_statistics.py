"""Statistics: every count by hand."""

import json
import math
from array import array
from dataclasses import replace

import numpy as np

from slm.data import statistics
from slm.data.config import DataConfig
from slm.data.quality.repeats.in_memory import Finder
from slm.data.sources.contents import unit_hash
from slm.data.sources.documents import make_plans
from slm.data.statistics import Statistics, histogram, read
from slm.data.tales.story import story

ROWS = ["alpha beta", "alpha  BETA", "x", "123 456 789", "gamma delta", "alpha beta gamma delta epsilon"]


def counted(tmp_path, max_docs=100, mode="exact", max_mb=math.inf):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in ["", *ROWS]))
    config = DataConfig(kind="files", files=[str(tmp_path / "a.jsonl")], min_chars=2, min_letters=0.5, val_fraction=0.1)
    each = replace(make_plans(config, "train")[0], held_out=unit_hash(ROWS[5]) + 1e-9)
    found = Statistics(encode=lambda text: text.split(" "), plan=each, finder=Finder(mode, 0.8))
    return each.held_out, found, read(found, each, seed=1, max_docs=max_docs, max_mb=max_mb)


def test_counts_by_hand(tmp_path):
    threshold, found, whole = counted(tmp_path)
    assert whole
    record = found.record()
    assert record["documents"] == 6
    assert record["left_out"] == {"min_chars": 1, "min_letters": 1}
    assert (record["exact_duplicates"], record["near_duplicates"], record["kept"]) == (1, 0, 3)
    assert record["tokens"] == 3 + 3 + 6  # words, and the end of each document
    assert record["bytes"] == sum(len(ROWS[i]) for i in (0, 4, 5))
    assert record["bytes_per_token"] == round(record["bytes"] / 9, 4)
    assert list(found.lengths) == [3, 3, 6]
    held_out = [len(text.split(" ")) + 1 for text in (ROWS[0], ROWS[4], ROWS[5]) if unit_hash(text) < threshold]
    assert record["held_out_tokens"] == sum(held_out) > 0
    assert record["document_tokens"] == {"min": 3, "p10": 3, "median": 3, "p90": 5, "max": 6}


def test_it_is_bounded(tmp_path):
    _, found, whole = counted(tmp_path, max_docs=3)
    assert (found.documents, whole) == (3, False)
    _, found, whole = counted(tmp_path, max_docs=6)
    assert (found.documents, whole) == (6, True)


def test_it_is_bounded_by_its_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(statistics, "BATCH", 2)
    _, found, whole = counted(tmp_path, max_mb=len(ROWS[0]) / 1e6)
    assert (found.documents, whole) == (2, False)
    _, found, whole = counted(tmp_path, max_mb=1)
    assert (found.documents, whole) == (6, True)


def test_endless_stories_are_bounded():
    (each,) = make_plans(DataConfig(kind="tales"), "train")
    found = Statistics(encode=str.split, plan=each, finder=Finder("near", 0.8))
    assert not read(found, each, seed=3, max_docs=50)
    assert found.documents == len(found.lengths) == 50
    assert found.lengths[7] == len(story(3, 7).split()) + 1


def test_the_histogram_holds_every_token():
    lengths = array("I", [1, 1, 7, 300, 5000])
    edges, tokens = histogram(lengths)
    assert tokens.sum() == sum(lengths)
    assert np.all(np.diff(edges) > 0)
    assert histogram(array("I", [4, 4]))[1].sum() == 8
