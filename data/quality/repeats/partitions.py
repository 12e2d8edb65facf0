"""Pairs of a key and a number, sorted by key on disk in bounded memory.

They are written to parts by the first bits of their keys. A part that fits into the memory is sorted there; a larger
one is divided by its next bits. (Disks read and write long stretches, so that this is as fast as they are.)

Tested in tests/data/quality/repeats/test_on_disk.py.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np

PAIR = np.dtype([("key", "<u8"), ("number", "<u4")])
_BITS = 8
_SORTING = 5
"""Bytes that sorting takes, for each byte of pairs."""


class Partitions:
    """The pairs. They are added in any order, and then come once, sorted; numbers of a key in the order of adding."""

    def __init__(self, folder: Path, *, memory: int, key_bits: int = 64) -> None:
        """``folder`` is made, and removed when the pairs have come. ``memory``, in bytes, is what all this takes at
        most."""
        self._folder = folder
        self._memory = memory
        self._bits = key_bits
        self._shift = np.uint64(max(0, key_bits - _BITS))
        self._held: list[np.ndarray] = []
        self._room = max(1, memory // (4 * PAIR.itemsize))  # pairs held at most: those, and a copy of them in order
        self._n_held = 0
        self._sizes = np.zeros(1 << _BITS, dtype=np.int64)
        folder.mkdir(parents=True)

    def add(self, keys: np.ndarray, numbers: np.ndarray) -> None:
        """Add pairs, ``np.uint64[n]`` and ``np.uint32[n]``. Raises OSError where the disk is full."""
        pairs = np.empty(len(keys), dtype=PAIR)
        pairs["key"], pairs["number"] = keys, numbers
        self._held.append(pairs)
        self._n_held += len(pairs)
        if self._n_held >= self._room:
            self._spill()

    def sorted(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Keys and their numbers in stretches. Only a key with more numbers than fit goes on in the next one."""
        if self._sizes.any():
            self._spill()
            yield from self._from_parts()
        else:  # all of them fit
            yield from _in_order(np.concatenate([np.empty(0, dtype=PAIR), *self._held]))
        self._held = []
        shutil.rmtree(self._folder)

    def _from_parts(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        fitting = max(1, self._memory // (_SORTING * PAIR.itemsize))
        for part in np.flatnonzero(self._sizes).tolist():
            path = self._path(part)
            if self._sizes[part] <= fitting:
                yield from _in_order(np.fromfile(path, dtype=PAIR))
            elif self._bits <= _BITS:  # all of one key
                for pairs in _read(path, fitting):
                    yield pairs["key"], pairs["number"]
            else:
                divided = Partitions(path.with_suffix(".parts"), memory=self._memory, key_bits=self._bits - _BITS)
                for pairs in _read(path, fitting):
                    divided.add(pairs["key"], pairs["number"])
                path.unlink()
                yield from divided.sorted()
            path.unlink(missing_ok=True)

    def _spill(self) -> None:
        if not self._held:
            return
        pairs = np.concatenate(self._held)
        self._held, self._n_held = [], 0
        parts = (pairs["key"] >> self._shift).astype(np.uint8)  # of the bits before these, all are equal
        order = np.argsort(parts, kind="stable")
        pairs = pairs[order]
        counts = np.bincount(parts, minlength=1 << _BITS)
        ends = np.cumsum(counts)
        for part in np.flatnonzero(counts).tolist():
            with open(self._path(part), "ab") as file:
                pairs[ends[part] - counts[part] : ends[part]].tofile(file)
        self._sizes += counts

    def _path(self, part: int) -> Path:
        return self._folder / f"{part:03d}"


def _read(path: Path, n: int) -> Iterator[np.ndarray]:
    with open(path, "rb") as file:
        while len(pairs := np.fromfile(file, dtype=PAIR, count=n)):
            yield pairs


def _in_order(pairs: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    if len(pairs):
        order = np.argsort(pairs["key"], kind="stable")
        yield pairs["key"][order], pairs["number"][order]
