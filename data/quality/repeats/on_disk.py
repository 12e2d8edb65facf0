"""Duplicates among any number of documents, in bounded memory: what ``Finder`` finds, after all of them were given.

Hashes, sketches and the hashes of their bands are written to files while documents are added. Then the hashes are
sorted, which shows exact duplicates and the documents that share a band. These are looked at in their order, each next
to the earlier ones of its bands that stayed.
"""

import itertools
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from slm.data.quality.repeats.partitions import Partitions
from slm.data.quality.repeats.sketch import N_HASHES, band_keys, digest, n_bands, sketches
from slm.data.quality.words import normalized

MEMORY = 128 << 20
"""Bytes that sorting takes at most, twice at the same time. Next to it are a batch of documents and what
the system keeps of the files."""
FRESH, EXACT, NEAR = 0, 1, 2
"""Verdicts: of a document that repeats no earlier one, and of two kinds of duplicates."""
_COMPARED = 4096  # sketches compared at once
_CHUNK = 1 << 20  # documents or buckets looked at in one go


class DiskFinder:
    """Finds the documents that repeat earlier ones; the first of several duplicates stays.

    Disk per document, until it is closed: 12 bytes for ``exact``; for ``near`` 0.7 KB, or 0.9 KB below a threshold of
    0.75.
    """

    def __init__(self, folder: Path, mode: Literal["exact", "near"], threshold: float, *, memory: int = MEMORY) -> None:
        """``folder`` is for its files; what is in it is lost. Methods raise OSError where the disk is full."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._folder = folder
        self._threshold = threshold
        self._bands = n_bands(threshold) if mode == "near" else 0
        self._memory = memory
        # The two take what they hold at the same time, and sort one after the other.
        self._digests = Partitions(folder / "digests", memory=memory // 4)
        self._keys = Partitions(folder / "bands", memory=memory)
        self._sketches = open(folder / "sketches", "wb")  # noqa: SIM115  # closed in ``verdicts``
        self.documents = 0
        """How many were added."""

    def add(self, texts: Sequence[str]) -> None:
        """Add documents, in their order."""
        if not texts:
            return
        plain = list(map(normalized, texts))
        digests = np.array(list(map(digest, plain)), dtype=np.uint64)
        self.add_sketches(digests, sketches(plain) if self._bands else None)

    def add_sketches(self, digests: np.ndarray, found: np.ndarray | None) -> None:
        """Add documents by their digests, ``np.uint64[n]``, and for ``near`` their sketches, ``np.uint32[n, 128]``."""
        numbers = np.arange(self.documents, self.documents + len(digests), dtype=np.uint32)
        self.documents += len(digests)
        self._digests.add(digests, numbers)
        if found is not None:
            found.tofile(self._sketches)
            self._keys.add(band_keys(found, self._bands).ravel(), np.repeat(numbers, self._bands))

    def verdicts(self) -> np.ndarray:
        """``np.uint8[documents]`` in a file, a verdict on each document in the order of adding. Nothing is added
        after it."""
        self._sketches.close()
        if not self.documents:
            return np.zeros(0, dtype=np.uint8)
        found = _zeros(self._folder / "verdicts", np.uint8, self.documents)
        _mark_exact(self._digests, found)
        if self._bands:
            shared = Shared(self._folder, self.documents, self._memory)
            shared.collect(self._keys, found)
            shared.compare(self._folder / "sketches", self._threshold, found)
        return found

    def close(self) -> None:
        """Remove its files."""
        self._sketches.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _mark_exact(digests: Partitions, verdicts: np.ndarray) -> None:
    last: int | None = None
    for keys, numbers in digests.sorted():
        verdicts[numbers[~_begins(keys, last)]] = EXACT
        last = int(keys[-1])


def _begins(keys: np.ndarray, last: int | None) -> np.ndarray:
    """Which of the sorted keys differ from the one before; that before the first is ``last``."""
    found = np.empty(len(keys), dtype=bool)
    found[0] = last is None or int(keys[0]) != last
    np.not_equal(keys[1:], keys[:-1], out=found[1:])
    return found


class Shared:
    """The bands that several documents have, as numbered buckets of documents that stay."""

    def __init__(self, folder: Path, documents: int, memory: int) -> None:
        self._folder = folder
        self._members = Partitions(folder / "members", memory=memory, key_bits=max(8, documents.bit_length()))
        self._buckets = 0
        self._room = 0  # of all buckets together

    def collect(self, keys: Partitions, verdicts: np.ndarray) -> None:
        """Number the bands that several documents share, exact duplicates not counted, and size their buckets."""
        last: int | None = None
        open_size = 0  # of the last bucket, which the next stretch may continue
        with open(self._folder / "begins", "wb") as begins:
            for found, numbers in keys.sorted():
                fresh = verdicts[numbers] == FRESH
                found, numbers = found[fresh], numbers[fresh]
                if not len(found):
                    continue
                new = _begins(found, last)
                alone = new & np.append(new[1:], True)
                found, numbers, new = found[~alone], numbers[~alone], new[~alone]
                if not len(numbers):
                    continue
                last = int(found[-1])
                bucket = np.cumsum(new) + (self._buckets - 1)  # the first one may belong to the bucket before
                self._members.add(numbers.astype(np.uint64), bucket.astype(np.uint32))
                sizes = np.bincount(bucket - (self._buckets - 1))
                sizes[0] += open_size
                # What is finished: all but the last bucket, and none before the first.
                done = sizes[0 if self._buckets else 1 : -1]
                _starts(self._room, done).tofile(begins)
                self._room += int(done.sum())
                self._buckets, open_size = int(bucket[-1]) + 1, int(sizes[-1])
            _starts(self._room, np.array([open_size][: self._buckets])).tofile(begins)
            self._room += open_size

    def compare(self, sketches_path: Path, threshold: float, verdicts: np.ndarray) -> None:
        """Mark documents that are near an earlier one which stays."""
        if not self._buckets:
            return
        slots, filled = self._folder / "slots", self._folder / "filled"
        _zeros(slots, np.uint32, self._room)
        _zeros(filled, np.uint32, self._buckets)
        least = threshold * N_HASHES
        for documents, buckets in _by_document(self._members):
            # Opened again for each stretch: what was looked at of a file stays in the process until it is closed.
            sketch_of = _mapped(sketches_path, np.uint32).reshape(-1, N_HASHES)
            begins = _mapped(self._folder / "begins", np.uint64)
            members, counts = _mapped(slots, np.uint32), _mapped(filled, np.uint32)
            firsts = begins[buckets].astype(np.int64)
            edges = [*np.flatnonzero(np.append(True, documents[1:] != documents[:-1])).tolist(), len(documents)]
            for start, end in itertools.pairwise(edges):
                document, its = int(documents[start]), buckets[start:end]
                first, count = firsts[start:end], counts[its].astype(np.int64)
                others = _others(members, first, count)
                if any(
                    ((sketch_of[part] == sketch_of[document]).sum(axis=1) >= least).any() for part in _parts(others)
                ):
                    verdicts[document] = NEAR
                else:
                    members[first + count] = document
                    counts[its] = count + 1


def _zeros(path: Path, dtype: type[np.unsignedinteger], n: int) -> np.ndarray:
    """A file of zeros as an array. They are written: a full disk would end the process where it is mapped."""
    size = n * np.dtype(dtype).itemsize
    with open(path, "wb") as file:
        for start in range(0, size, _CHUNK):
            file.write(bytes(min(_CHUNK, size - start)))
    return _mapped(path, dtype)


def _mapped(path: Path, dtype: type[np.unsignedinteger]) -> np.ndarray:
    """The file as an array; what is written to it is written to the file."""
    return np.asarray(np.memmap(path, dtype=dtype, mode="r+"))


def _starts(begin: int, sizes: np.ndarray) -> np.ndarray:
    """Where stretches of these sizes begin, one after another, the first at ``begin``."""
    return (begin + np.cumsum(sizes) - sizes).astype(np.uint64)


def _by_document(members: Partitions) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Documents, ``np.uint64[n]`` in order, and the buckets they are in; all of a document's come together."""
    held: tuple[np.ndarray, np.ndarray] | None = None
    for documents, buckets in members.sorted():
        for start in range(0, len(documents), _CHUNK):
            found = documents[start : start + _CHUNK], buckets[start : start + _CHUNK]
            if held is not None:
                found = np.concatenate([held[0], found[0]]), np.concatenate([held[1], found[1]])
            at = int(np.searchsorted(found[0], found[0][-1]))
            if at:
                yield found[0][:at], found[1][:at]
            held = found[0][at:], found[1][at:]
    if held is not None:
        yield held


def _others(members: np.ndarray, first: np.ndarray, count: np.ndarray) -> list[int]:
    """The documents in the buckets, each once."""
    found: set[int] = set()
    for begin, n in zip(first.tolist(), count.tolist(), strict=True):
        if n:
            found.update(members[begin : begin + n].tolist())
    return sorted(found)


def _parts(numbers: list[int]) -> Iterator[list[int]]:
    for start in range(0, len(numbers), _COMPARED):
        yield numbers[start : start + _COMPARED]
