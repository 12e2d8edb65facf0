"""Duplicates on disk: the same as in memory, whatever the memory, and a list that no process holds as a whole."""

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from slm.data.quality.repeats import on_disk
from slm.data.quality.repeats.in_memory import Finder
from slm.data.quality.repeats.on_disk import DiskFinder
from slm.data.quality.repeats.partitions import Partitions

MEASURE = Path(__file__).with_name("measure_on_disk.py")
CODES = {"": 0, "exact": 1, "near": 2}


def corpus(n, seed=0):
    """Documents of which many repeat earlier ones: the same, with a few words changed, or many, in chains of copies."""
    rng = random.Random(seed)
    texts = []
    for _ in range(n):
        kind = rng.random()
        if texts and kind < 0.2:
            text = rng.choice(texts)
        elif texts and kind < 0.7:
            words = rng.choice(texts[-200:]).split()
            for _ in range(rng.choice([1, 2, 3, 4, 6, 9, 14, 20])):
                words[rng.randrange(len(words))] = str(rng.randrange(10**6))
            text = " ".join(words)
        else:
            text = " ".join(str(rng.randrange(10**6)) for _ in range(rng.choice([3, 40, 120])))
        texts.append(text)
    return texts


def in_memory(texts, mode, threshold):
    return [CODES[each] for each in Finder(mode, threshold).add(texts)]


def on_the_disk(texts, folder, mode, threshold, memory, batch=97):
    finder = DiskFinder(folder, mode, threshold, memory=memory)
    for start in range(0, len(texts), batch):
        finder.add(texts[start : start + batch])
    found = finder.verdicts().tolist()
    finder.close()
    assert not folder.exists()
    return found


@pytest.mark.parametrize(("mode", "threshold"), [("exact", 0.8), ("near", 0.8), ("near", 0.6), ("near", 1.0)])
def test_the_same_as_in_memory(tmp_path, mode, threshold, monkeypatch):
    """With memory for all, and with so little that every part is divided twice and more and documents come in
    stretches."""
    texts = corpus(200)
    expected = in_memory(texts, mode, threshold)
    assert sum(map(bool, expected)) > 40
    assert on_the_disk(texts, tmp_path / "f", mode, threshold, 64 << 20) == expected
    divided = []
    first = Partitions.__init__

    def counted(self, folder, **options):
        divided.append(folder)
        first(self, folder, **options)

    monkeypatch.setattr(Partitions, "__init__", counted)
    monkeypatch.setattr(on_disk, "_CHUNK", 300)
    monkeypatch.setattr(on_disk, "_COMPARED", 3)
    assert on_the_disk(texts, tmp_path / "f", mode, threshold, 1500 if mode == "near" else 60) == expected
    assert sum(each.suffix == ".parts" for each in divided) > 1


def test_many_documents_share_a_band(tmp_path):
    """A group of hundreds that overlap in pairs: more in one bucket than fit into the memory."""
    rng = random.Random(1)
    shared = [str(rng.randrange(10**6)) for _ in range(100)]
    texts = [" ".join([*shared, *(str(rng.randrange(10**6)) for _ in range(rng.choice([5, 40])))]) for _ in range(160)]
    expected = in_memory(texts, "near", 0.8)
    assert 20 < sum(map(bool, expected)) < 159
    assert on_the_disk(texts, tmp_path / "f", "near", 0.8, 3000) == expected


@pytest.mark.parametrize("n", [0, 1, 2])
def test_few_documents(tmp_path, n):
    texts = ["one two three four five six"] * n
    assert on_the_disk(texts, tmp_path / "f", "near", 0.8, 1 << 20) == [0, 1][:n]


@pytest.mark.parametrize("memory", [600, 5000, 1 << 20])
@pytest.mark.parametrize(("bits", "n"), [(64, 900), (8, 900), (13, 300), (64, 0)])
def test_partitions_are_sorted_and_complete(tmp_path, memory, bits, n):
    rng = np.random.default_rng(2)
    keys = rng.integers(0, (1 << bits) - 1, n, dtype=np.uint64, endpoint=True)
    keys = np.where(rng.random(n) < 0.4, 77, keys).astype(np.uint64)  # many of one
    numbers = np.arange(n, dtype=np.uint32)
    partitions = Partitions(tmp_path / "parts", memory=memory, key_bits=bits)
    for start in range(0, n, 41):
        partitions.add(keys[start : start + 41], numbers[start : start + 41])
    found = list(partitions.sorted())
    order = np.argsort(keys, kind="stable")
    assert np.array_equal(np.concatenate([np.empty(0, np.uint64), *(each for each, _ in found)]), keys[order])
    assert np.array_equal(np.concatenate([np.empty(0, np.uint32), *(each for _, each in found)]), numbers[order])
    assert not (tmp_path / "parts").exists()


def test_memory_is_bounded(tmp_path):
    """Four times as many documents take no more memory."""
    peaks = []
    for n in (4_000, 16_000):
        done = subprocess.run(
            [sys.executable, MEASURE, f"--documents={n}", "--memory=1", f"--folder={tmp_path / 'f'}"],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout.splitlines()[-1])
        assert found["near"] == found["made"] > 0.2 * n
        peaks.append(found["MB"])
    assert peaks[1] - peaks[0] < 6, peaks
