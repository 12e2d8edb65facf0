"""A source as parts (files, shards) of records, read from any position: one pass over it, or over a share of it."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from data.sources import files
from data.stream.packing import Document, State


class Reader(Protocol):
    """The records of one part, from some position on."""

    def __next__(self) -> Any:
        """The next record, not yet looked into."""
        ...

    def document(self, record: Any) -> Document | None:
        """What the record that was just given holds; None where it is left out or empty."""
        ...

    def position(self) -> Any:
        """Where the reader is, JSON-serialisable; None: the record's number says it all."""
        ...

    def share(self) -> float:
        """About how much of the part has been read, 0 to 1; 0 where that is not known."""
        ...


class Corpus(Protocol):
    """Parts that can be opened at a position."""

    def count(self) -> int:
        """How many parts there are."""
        ...

    def by_part(self, num_shards: int) -> bool:
        """Whether shards take whole parts (else every ``num_shards``-th record)."""
        ...

    def open(self, part: int, record: int, at: Any) -> Reader:
        """Read ``part`` from its record number ``record``, which is at the position ``at`` (None: not known)."""
        ...


class PartStream:
    """One pass over a corpus in an order of its parts, or one shard's share of it.

    The state's ``at`` only saves time: the numbers beside it are enough to find the place.
    """

    def __init__(
        self, corpus: Corpus, *, order: Callable[[int], list[int]], shard_index: int = 0, num_shards: int = 1
    ) -> None:
        self._corpus = corpus
        self._make_order = order
        self._order: list[int] | None = None
        self._index, self._count = shard_index, num_shards
        self._place = 0  # in the order
        self._record = 0  # of the part: the next one
        self._ordinal = 0  # of the next record in the whole pass
        self._at: Any = None
        self._reader: Reader | None = None

    def __iter__(self) -> "PartStream":
        return self

    def __next__(self) -> Document:
        if self._order is None:
            self._set_order()
        while self._place < len(self._order):
            if self._reader is None:
                self._reader = self._corpus.open(self._order[self._place], self._record, self._at)
            for record in _until_end(self._reader):
                mine = self._ordinal % self._count == self._index
                self._ordinal += 1
                self._record += 1
                if mine:
                    document = self._reader.document(record)
                    if document is not None:
                        return document
            self._place, self._record, self._at, self._reader = self._place + 1, 0, None, None
        raise StopIteration

    def _set_order(self) -> None:
        self._order = self._make_order(self._corpus.count())
        if self._corpus.by_part(self._count):
            self._order = self._order[self._index :: self._count]
            self._index, self._count = 0, 1

    def state_dict(self) -> State:
        at = self._at if self._reader is None else self._reader.position()
        return {"part": self._place, "record": self._record, "ordinal": self._ordinal, "at": at}

    def load_state_dict(self, state: State) -> None:
        self._place, self._record, self._ordinal = state["part"], state["record"], state["ordinal"]
        self._at, self._reader = state["at"], None


def _until_end(reader: Reader) -> Any:
    while True:
        try:
            yield next(reader)
        except StopIteration:
            return


class FileCorpus:
    """Local files; every shard reads all of them and takes its records."""

    def __init__(self, paths: tuple[str, ...], reading: files.Reading) -> None:
        self._paths = paths
        self._reading = reading

    def count(self) -> int:
        return len(self._paths)

    def by_part(self, num_shards: int) -> bool:
        return False

    def open(self, part: int, record: int, at: Any) -> Reader:
        reader = _FileReader(self._paths[part], self._reading, at or 0)
        if at is None:
            for _ in range(record):
                next(reader)
        return reader


class _FileReader:
    def __init__(self, path: str, reading: files.Reading, at: int) -> None:
        self._path = path
        self._reading = reading
        self._at = at
        self._records = files.read(path, at, reading)

    def __next__(self) -> files.Raw:
        raw, self._at = next(self._records)
        return raw

    def document(self, record: files.Raw) -> str | None:
        text = files.parse(record, self._path, self._at, self._reading)
        return text if text and not text.isspace() else None

    def position(self) -> int:
        return self._at

    def share(self) -> float:
        end = files.extent(self._path)
        return min(1.0, self._at / end) if end else 0.0


class Selected:
    """A corpus without the documents that ``accepts`` refuses and without the records in ``skipped``."""

    def __init__(
        self,
        corpus: Corpus,
        *,
        accepts: Callable[[str], bool] | None = None,
        skipped: dict[int, np.ndarray] | None = None,
    ) -> None:
        self._corpus = corpus
        self._accepts = accepts
        self._skipped = skipped or {}

    def count(self) -> int:
        return self._corpus.count()

    def by_part(self, num_shards: int) -> bool:
        return self._corpus.by_part(num_shards)

    def open(self, part: int, record: int, at: Any) -> Reader:
        reader = self._corpus.open(part, record, at)
        return _SelectedReader(reader, record, self._accepts, self._skipped.get(part))


class _SelectedReader:
    def __init__(
        self, reader: Reader, record: int, accepts: Callable[[str], bool] | None, skipped: np.ndarray | None
    ) -> None:
        self._reader = reader
        self._next = record
        self._accepts = accepts
        self._skipped = skipped  # sorted record numbers

    def __next__(self) -> Any:
        record = next(self._reader)
        self._next += 1
        return record

    def document(self, record: Any) -> Document | None:
        if self._skipped is not None:
            number = self._next - 1
            place = int(np.searchsorted(self._skipped, number))
            if place < len(self._skipped) and self._skipped[place] == number:
                return None
        document = self._reader.document(record)
        if document is None or (self._accepts and not self._accepts(document)):
            return None
        return document

    def position(self) -> Any:
        return self._reader.position()

    def share(self) -> float:
        return self._reader.share()
