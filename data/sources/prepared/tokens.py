"""Reading the shards of a prepared corpus: a corpus of tokenized documents, mapped into memory and not read ahead.

Tested in tests/data/prepare/test_prepare.py.
"""

import functools
from pathlib import Path
from typing import Any

import numpy as np

from slm.data.sources.document_stream import Encoded
from slm.data.sources.prepared.manifest import (
    CALIBRATION,
    CALIBRATION_PASSAGE,
    ROW,
    SHARDS,
    TRAIN,
    VALIDATION,
    PreparedText,
    Stretch,
    load,
)


class PreparedCorpus:
    """The documents of one split. Files and records have the numbers that they have in the text."""

    def __init__(self, text: PreparedText, split: str, *, calibrates: bool) -> None:
        """``calibrates``: training leaves out what is kept to calibrate a head."""
        self._folder = Path(text.folder) / SHARDS
        manifest = load(text.folder)
        self._dtype = manifest["dtype"]
        self._by_file: bool = text.facts["by_file"]
        self._parts = {
            "train": (TRAIN,) if calibrates else (TRAIN, CALIBRATION),
            "validation": (VALIDATION,),
            "calibration": (CALIBRATION, CALIBRATION_PASSAGE),
        }[split]
        own = text.facts["own_validation"] and split == "validation"
        self._files: list[list[Stretch]] = [[] for _ in range(text.facts["validation_files" if own else "files"])]
        for number, shard in enumerate(manifest["shards"]):
            if (shard["source"], shard["own_validation"]) != (text.number, own):
                continue
            row = 0
            for file, n_records, n_rows in shard["stretches"]:
                self._files[file].append(Stretch(file, n_records, number, row, row + n_rows))
                row += n_rows

    def n_files(self) -> int:
        return len(self._files)

    def splits_by_file(self, n_shards: int) -> bool:
        return self._by_file and self.n_files() >= n_shards

    def open(self, file: int, record: int, position: Any) -> "_Records":
        return _Records(self, self._files[file], record)

    def rows(self, stretch: Stretch) -> tuple[np.ndarray, np.ndarray]:
        """The stretch's rows of the split's parts, and where the ids of each begin in the shard."""
        index, starts = _index(str(self._folder / f"{stretch.shard:05d}.index"))
        chosen = np.flatnonzero(np.isin(index[stretch.first : stretch.stop, 1], self._parts)) + stretch.first
        return index[chosen], starts[chosen]

    def ids(self, shard: int) -> np.ndarray:
        return _ids(str(self._folder / f"{shard:05d}.tokens"), self._dtype)


@functools.lru_cache(maxsize=8)
def _index(path: str) -> tuple[np.ndarray, np.ndarray]:
    index = np.fromfile(path, ROW).reshape(-1, 4)
    lengths = index[:, 2].astype(np.int64)
    return index, np.cumsum(lengths) - lengths


@functools.lru_cache(maxsize=32)  # each holds a file open
def _ids(path: str, dtype: str) -> np.ndarray:
    if Path(path).stat().st_size == 0:
        return np.empty(0, dtype)  # which cannot be mapped
    return np.memmap(path, dtype, mode="r")


class _Records:
    """The records of one file, each with its document of the split, or none."""

    def __init__(self, corpus: PreparedCorpus, stretches: list[Stretch], record: int) -> None:
        self._corpus = corpus
        self._left = list(reversed(stretches))
        self._total = sum(each.n_records for each in stretches)
        self._read = record
        self._stretch: Stretch | None = None
        while self._left and record >= self._left[-1].n_records:
            record -= self._left.pop().n_records
        self._record = record  # of the stretch: the next one
        self._open()

    def _open(self) -> None:
        self._stretch = self._left.pop() if self._left else None
        if self._stretch is not None:
            rows, starts = self._corpus.rows(self._stretch)
            self._rows, self._starts = rows.tolist(), starts.tolist()
            self._next = int(np.searchsorted(rows[:, 0], self._record))  # row

    def __next__(self) -> int | None:
        """The number of the record's row, None where the split has nothing of it."""
        while self._stretch is not None and self._record == self._stretch.n_records:
            self._record = 0
            self._open()
        if self._stretch is None:
            raise StopIteration
        self._record += 1
        self._read += 1
        if self._next < len(self._rows) and self._rows[self._next][0] == self._record - 1:
            self._next += 1
            return self._next - 1
        return None

    def document(self, row: int | None) -> Encoded | None:
        if row is None:
            return None
        assert self._stretch is not None
        _, _, length, chars = self._rows[row]
        start = self._starts[row]
        return Encoded(self._corpus.ids(self._stretch.shard)[start : start + length], chars)

    def position(self) -> None:
        return None

    def fraction_read(self) -> float:
        return self._read / max(1, self._total)
