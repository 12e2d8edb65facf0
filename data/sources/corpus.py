"""A corpus: files of records, read from any position. A pass over it covers all of it or one shard's share."""

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from slm.data.sources import files
from slm.data.sources.document_stream import Doc, Document, State

SMALL_CORPUS = 64 << 20
"""A corpus of fewer bytes is read once before training: what it holds, and how much of it is held out, is known."""
Doc_co = TypeVar("Doc_co", bound=Document, covariant=True)


class Reader(Protocol[Doc_co]):
    """The records of one file, from some position on."""

    def __next__(self) -> Any:
        """The next record, not yet parsed."""
        ...

    def document(self, record: Any) -> Doc_co | None:
        """The document in the record that ``__next__`` just returned; None where it is left out or empty."""
        ...

    def position(self) -> Any:
        """The reader's position, JSON-serialisable; None: the record's number is enough."""
        ...

    def fraction_read(self) -> float:
        """Roughly how much of the file has been read, 0 to 1; 0 where that is not known."""
        ...


class Corpus(Protocol[Doc_co]):
    """Numbered files of records. Local files, a Hub split's files, or a whole split as one file."""

    def n_files(self) -> int:
        """How many files there are."""
        ...

    def splits_by_file(self, n_shards: int) -> bool:
        """Whether each of ``n_shards`` shards takes whole files; otherwise it takes every ``n_shards``-th record."""
        ...

    def open(self, file: int, record: int, position: Any) -> Reader[Doc_co]:
        """Read the file number ``file`` from its record number ``record``.

        ``position`` is what the reader's ``position()`` gave there, None: not known.
        """
        ...


class CorpusStream(Generic[Doc]):
    """One pass over a corpus, its files in the order that ``order(n_files)`` gives, or one shard's share of the pass.

    The state's ``at`` only saves time: the numbers next to it are enough to find the position.
    """

    def __init__(
        self, corpus: Corpus[Doc], *, order: Callable[[int], list[int]], shard_index: int = 0, num_shards: int = 1
    ) -> None:
        self._corpus = corpus
        self._make_order = order
        self._order: list[int] | None = None
        self._shard_index, self._num_shards = shard_index, num_shards
        self._index = 0  # into the order
        self._record = 0  # of the file: the next one
        self._ordinal = 0  # of the next record in the whole pass
        self._position: Any = None
        self._reader: Reader[Doc] | None = None

    def __iter__(self) -> "CorpusStream[Doc]":
        return self

    def __next__(self) -> Doc:
        if self._order is None:
            self._order = self._own_order()
        while self._index < len(self._order):
            if self._reader is None:
                self._reader = self._corpus.open(self._order[self._index], self._record, self._position)
            for record in records(self._reader):
                mine = self._ordinal % self._num_shards == self._shard_index
                self._ordinal += 1
                self._record += 1
                if mine:
                    document = self._reader.document(record)
                    if document is not None:
                        return document
            self._index, self._record, self._position, self._reader = self._index + 1, 0, None, None
        raise StopIteration

    @property
    def place(self) -> tuple[int, int]:
        """How far it has read: the index of the file in its order, and the number of the file's next record."""
        return self._index, self._record

    def _own_order(self) -> list[int]:
        """The files that this shard reads, all of them where the shards share each file's records."""
        order = self._make_order(self._corpus.n_files())
        if self._corpus.splits_by_file(self._num_shards):
            order = order[self._shard_index :: self._num_shards]
            self._shard_index, self._num_shards = 0, 1
        return order

    def state_dict(self) -> State:
        position = self._position if self._reader is None else self._reader.position()
        return {"part": self._index, "record": self._record, "ordinal": self._ordinal, "at": position}

    def load_state_dict(self, state: State) -> None:
        self._index, self._record, self._ordinal = state["part"], state["record"], state["ordinal"]
        self._position, self._reader = state["at"], None


def records(reader: Reader[Any]) -> Iterator[Any]:
    """The reader's records up to the end of its file."""
    while True:
        try:
            yield next(reader)
        except StopIteration:
            return


Select = Callable[[str, bool], str | None]
"""What is read of a document, None: nothing. The second argument says whether it is all of a file's plain text."""


class FileCorpus:
    """Local files; ``select`` takes its share of their documents. Every shard reads all and takes its own records."""

    def __init__(self, paths: tuple[str, ...], reading: files.Reading, select: Select | None = None) -> None:
        self._paths = paths
        self._reading = reading
        self._select = select

    def n_files(self) -> int:
        return len(self._paths)

    def splits_by_file(self, n_shards: int) -> bool:
        return False

    def open(self, file: int, record: int, position: Any) -> Reader[str]:
        reader = _FileReader(self._paths[file], self._reading, position or 0, self._select)
        if position is None:
            for _ in range(record):
                next(reader)
        return reader


class _FileReader:
    def __init__(self, path: str, reading: files.Reading, position: int, select: Select | None) -> None:
        self._path = path
        self._reading = reading
        self._position = position
        self._file = files.TextFile(path, reading)
        self._records = self._file.read(position)
        self._select = select
        self._undivided: bool | None = None  # not known before there is a document

    def __next__(self) -> files.Raw:
        raw, self._position = next(self._records)
        return raw

    def document(self, record: files.Raw) -> str | None:
        text = self._file.text(record, self._position)
        if not text or text.isspace():
            return None
        if self._select is None:
            return text
        if self._undivided is None:
            self._undivided = files.is_undivided(self._path, self._reading)
        return self._select(text, self._undivided) or None

    def position(self) -> int:
        return self._position

    @cached_property
    def _end(self) -> int | None:
        return files.extent(self._path)

    def fraction_read(self) -> float:
        return min(1.0, self._position / self._end) if self._end else 0.0


class SelectedCorpus:
    """A corpus without the documents that ``accepts`` rejects and without the records in ``skipped``, with each of the
    others as ``change`` makes it.

    ``skipped`` maps a file's number to the sorted numbers of its records.
    """

    def __init__(
        self,
        corpus: Corpus[str],
        *,
        accepts: Callable[[str], bool] | None = None,
        skipped: dict[int, np.ndarray] | None = None,
        change: Callable[[str], str] | None = None,
    ) -> None:
        self._corpus = corpus
        self._accepts = accepts
        self._change = change
        self._skipped = skipped or {}

    def n_files(self) -> int:
        return self._corpus.n_files()

    def splits_by_file(self, n_shards: int) -> bool:
        return self._corpus.splits_by_file(n_shards)

    def open(self, file: int, record: int, position: Any) -> Reader[str]:
        reader = self._corpus.open(file, record, position)
        return _SelectedReader(reader, record, self._accepts, self._skipped.get(file), self._change)


class _SelectedReader:
    def __init__(
        self,
        reader: Reader[str],
        record: int,
        accepts: Callable[[str], bool] | None,
        skipped: np.ndarray | None,
        change: Callable[[str], str] | None,
    ) -> None:
        self._reader = reader
        self._next = record
        self._accepts = accepts
        self._skipped = skipped  # sorted record numbers
        self._change = change

    def __next__(self) -> Any:
        record = next(self._reader)
        self._next += 1
        return record

    def document(self, record: Any) -> str | None:
        if self._skipped is not None:
            number = self._next - 1
            index = int(np.searchsorted(self._skipped, number))
            if index < len(self._skipped) and self._skipped[index] == number:
                return None
        document = self._reader.document(record)
        if document is None or (self._accepts and not self._accepts(document)):
            return None
        return document if self._change is None else self._change(document)

    def position(self) -> Any:
        return self._reader.position()

    def fraction_read(self) -> float:
        return self._reader.fraction_read()
