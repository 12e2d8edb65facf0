"""A run's training records: read as the file grows, kept as columns, thinned out for a picture."""

import json
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

POINTS = 1000
"""The most points of a curve, however long the run is."""

FIELDS = ("step", "tokens", "elapsed_s", "loss", "lr", "grad_norm", "tokens_per_s", "data_wait", "rss_gb")
"""The fields of a training record that are kept; with the units of ``metrics.jsonl``."""


class Tail:
    """Reads the lines that were added to a growing file. A file that takes its place is read from its beginning."""

    _MARK = 64
    """Bytes before the offset that are remembered to recognise the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._identity: tuple[int, int] | None = None
        self._offset, self._mark = 0, b""

    def read(self) -> tuple[list[str], bool]:
        """New whole lines, and whether they are of another file. If so, what was read before is void."""
        try:
            file = self.path.open("rb")
        except OSError:
            return [], False
        with file:
            status = os.fstat(file.fileno())
            identity = (status.st_dev, status.st_ino)
            fresh = identity != self._identity or status.st_size < self._offset or not self._same_start(file)
            restarted = fresh and self._offset > 0
            if fresh:
                self._identity, self._offset, self._mark = identity, 0, b""
            file.seek(self._offset)
            content = file.read()
        content = content[: content.rfind(b"\n") + 1]  # a line without its end is still being written
        if content:
            self._offset += len(content)
            self._mark = (self._mark + content)[-self._MARK :]
        return content.decode("utf-8", errors="replace").splitlines(), restarted

    def _same_start(self, file: Any) -> bool:
        """Whether the bytes before the offset are those that were read. An inode may be used again by another file."""
        file.seek(self._offset - len(self._mark))
        return file.read(len(self._mark)) == self._mark


def records(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The JSON objects that have a step; everything else in the file is skipped."""
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and number(record.get("step")) is not None:
            yield record


def number(value: Any) -> float | None:
    """``value`` where it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


class Curves:
    """The training records of a run as columns of numbers (NaN where a record has none), 72 bytes a record."""

    def __init__(self) -> None:
        self._rows = np.empty((256, len(FIELDS)))
        self._n = 0

    def __len__(self) -> int:
        return self._n

    def clear(self) -> None:
        self._n = 0

    def extend(self, training: list[dict[str, Any]]) -> None:
        """Append records. One with a step that is not new replaces the records from that step on."""
        rows = np.array([_row(record) for record in training]).reshape(-1, len(FIELDS))
        while len(rows):
            # The run may have gone back to an earlier checkpoint, before these records or between two of them.
            self._n = int(np.searchsorted(self["step"], rows[0, 0]))
            back = np.flatnonzero(np.diff(rows[:, 0]) <= 0)
            whole = int(back[0]) + 1 if len(back) else len(rows)
            self._append(rows[:whole])
            rows = rows[whole:]

    def _append(self, rows: np.ndarray) -> None:
        end = self._n + len(rows)
        if end > len(self._rows):
            grown = np.empty((max(end, 2 * len(self._rows)), len(FIELDS)))
            grown[: self._n] = self._rows[: self._n]
            self._rows = grown
        self._rows[self._n : end] = rows
        self._n = end

    def __getitem__(self, name: str) -> np.ndarray:
        """One field of every record, float64 [n_records]."""
        return self._rows[: self._n, FIELDS.index(name)]

    def n_nonfinite(self) -> int:
        """The number of records with a loss or gradient norm that is not finite."""
        return int((np.isnan(self["loss"]) | np.isnan(self["grad_norm"])).sum())

    def points(self, limit: int = POINTS) -> "Points":
        """At most ``limit`` points, each of the same number of neighbouring records."""
        return Points(self._rows[: self._n], limit)


class Points:
    """Groups of neighbouring records: the mean, the smallest and the largest value of each field.

    Because extremes are kept, a spike of one step is visible among a hundred thousand.
    """

    def __init__(self, rows: np.ndarray, limit: int) -> None:
        self.stride = max(1, -(-len(rows) // limit))
        """Records per point."""
        starts = np.arange(0, len(rows), self.stride)
        self.sizes = np.diff(np.append(starts, len(rows)))
        absent = np.isnan(rows)
        with np.errstate(invalid="ignore"):
            if len(rows):
                counts = np.add.reduceat(~absent, starts, axis=0, dtype=float)
                self._mean = np.add.reduceat(np.where(absent, 0, rows), starts, axis=0) / counts
                self._low, self._high = np.fmin.reduceat(rows, starts), np.fmax.reduceat(rows, starts)
            else:
                self._mean = self._low = self._high = rows

    def __len__(self) -> int:
        return len(self._mean)

    def mean(self, name: str) -> np.ndarray:
        return self._mean[:, FIELDS.index(name)]

    def low(self, name: str) -> np.ndarray:
        return self._low[:, FIELDS.index(name)]

    def high(self, name: str) -> np.ndarray:
        return self._high[:, FIELDS.index(name)]


def _row(record: dict[str, Any]) -> list[float]:
    return [math.nan if (value := number(record.get(name))) is None else value for name in FIELDS]
