"""Tokenized documents kept on disk, so that a slow source is read and tokenized once.

A corpus file is kept in segments of up to 4,096 records or 4 million characters. Each segment is its own file,
made when it is first needed. It holds the ids of its documents, marks for the records that are left out, and the
position in the source at which the next segment begins. So a cache can be left and continued at any length, it is
only as large as the text that was read, and a damaged segment is found by its hash and made again.

The stream of documents and its positions are the same with and without a cache.
"""

import contextlib
import json
import os
import struct
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from slm.data.sources import files
from slm.data.sources.corpus import Corpus, Reader
from slm.data.sources.document_stream import Document, Encoded
from slm.data.sources.kinds import CONVERTED
from slm.data.sources.plan import Plan
from slm.data.storage import NoRoomError, fingerprint, locked, read_checked, stamps, write_checked
from slm.data.tokenizers.tokenizer import Tokenizer

VERSION = 2
SEGMENT_RECORDS = 4096
SEGMENT_CHARS = 4 << 20
LEFT_OUT = -1  # the length that marks a record as left out


def is_wanted(option: str | bool, plan: Plan) -> bool:
    """Whether ``data.cache`` asks for a cache of this source; ``auto`` does only if reading it is slow.

    Validation text is kept only of the Hub, so that a run can resume without a network.
    """
    if plan.source.kind == "tales" or plan.source.is_chat or plan.prepared is not None or option is False:
        return False
    if plan.split != "train" and plan.source.kind != "hub":
        return False
    if option is True or plan.source.kind == "hub":
        return True
    return any(
        path.lower().endswith(files.COMPRESSED_SUFFIXES) or files.file_format(path) in CONVERTED for path in plan.files
    )


def add_cache(
    corpus: Corpus[str],
    plan: Plan,
    tokenizer: Tokenizer,
    folder: str | os.PathLike[str],
    *,
    encode: Callable[[str], Any],
    required: bool,
) -> Corpus[Document]:
    """``corpus``, as ``plan`` selects it, with a cache in ``folder`` over it.

    If the disk has no room, the source is read without a cache, unless the cache is ``required``.
    """
    key = (VERSION, plan.selection, stamps(plan.files), tokenizer.fingerprint, SEGMENT_RECORDS, SEGMENT_CHARS)
    dtype = "<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4"
    store = Store(Path(folder) / "tokens" / fingerprint(key), corpus, encode, dtype)
    return CachedCorpus(corpus, store, required=required)


class Segment:
    """Consecutive records of a corpus file: ``documents[i]`` is None where the record is left out."""

    def __init__(self, first: int, documents: list[Encoded | None], end: Any, last: bool) -> None:
        self.first = first
        """Number of the first record in its file."""
        self.documents = documents
        self.end = end
        """The source's position after the last record."""
        self.last = last
        """Whether the file ends here."""

    def to_bytes(self, dtype: Any) -> bytes:
        lengths = np.array([LEFT_OUT if d is None else len(d.ids) for d in self.documents], dtype="<i4")
        chars = np.array([0 if d is None else d.chars for d in self.documents], dtype="<u4")
        kept = [d.ids for d in self.documents if d is not None]
        ids = np.concatenate(kept).astype(dtype) if kept else np.empty(0, dtype)
        head = {"first": self.first, "count": len(lengths), "dtype": np.dtype(dtype).str, "end": self.end}
        head_bytes = json.dumps(head | {"last": self.last}).encode()
        arrays = (lengths.tobytes(), chars.tobytes(), ids.tobytes())
        return b"".join([struct.pack("<I", len(head_bytes)), head_bytes, *arrays])

    @classmethod
    def from_bytes(cls, content: bytes) -> "Segment":
        (size,) = struct.unpack_from("<I", content)
        head = json.loads(content[4 : 4 + size])
        at, count = 4 + size, head["count"]
        lengths = np.frombuffer(content, "<i4", count, at)
        chars = np.frombuffer(content, "<u4", count, at + 4 * count)
        ids = np.frombuffer(content, head["dtype"], offset=at + 8 * count)
        ends = np.cumsum(np.maximum(lengths, 0))
        documents = [
            None if length == LEFT_OUT else Encoded(ids[stop - length : stop], chars=n)
            for length, stop, n in zip(lengths.tolist(), ends.tolist(), chars.tolist(), strict=True)
        ]
        return cls(head["first"], documents, head["end"], head["last"])


class Store:
    """The segments of one selection of text under one tokenizer: read, or made where they are missing."""

    def __init__(self, folder: Path, corpus: Corpus[str], encode: Callable[[str], Any], dtype: str) -> None:
        self._folder = folder
        self._corpus = corpus
        self._encode = encode
        self._dtype = dtype
        self._source: tuple[int, int, Reader[str]] | None = None  # file, next record, its reader
        self._facts: dict[str, Any] | None = None

    def fact(self, name: str, ask: Callable[[], Any]) -> Any:
        """What ``ask()`` says of the corpus, or said before: so the Hub is not asked about text that is here."""
        path = self._folder / "corpus.json"
        if self._facts is None:
            self._facts = json.loads(read_checked(path) or b"{}")
        if name not in self._facts:
            self._facts[name] = ask()
            with contextlib.suppress(NoRoomError):  # the segments report that
                write_checked(path, json.dumps(self._facts).encode())
        return self._facts[name]

    def segment(self, file: int, number: int, before: Segment | None) -> Segment:
        """Segment ``number`` of ``file``; ``before`` is the one before it (None for the first)."""
        path = self._folder / f"{file:05d}-{number:06d}.tokens"
        found = self._read(path, before)
        if found is None:
            with locked(self._folder / f"{file:05d}.lock"):
                found = self._read(path, before)  # another worker may have made it meanwhile
                if found is None:
                    if path.exists():
                        _report(f"{path} is damaged and is made again")
                    found = self._make(file, before)
                    write_checked(path, found.to_bytes(self._dtype))
        return found

    def _read(self, path: Path, before: Segment | None) -> Segment | None:
        content = read_checked(path)
        segment = None if content is None else Segment.from_bytes(content)
        first = before.first + len(before.documents) if before else 0
        return segment if segment is not None and segment.first == first else None

    def _make(self, file: int, before: Segment | None) -> Segment:
        first = before.first + len(before.documents) if before else 0
        reader = self._reader(file, first, before.end if before else None)
        documents: list[Encoded | None] = []
        chars = 0
        last = False
        while len(documents) < SEGMENT_RECORDS and chars < SEGMENT_CHARS:
            try:
                record = next(reader)
            except StopIteration:
                last = True
                break
            text = reader.document(record)
            if text is not None:
                chars += len(text)
            documents.append(None if text is None else Encoded(np.array(self._encode(text), self._dtype), len(text)))
        self._source = None if last else (file, first + len(documents), reader)
        return Segment(first, documents, None if last else reader.position(), last)

    def _reader(self, file: int, record: int, position: Any) -> Reader[str]:
        """A reader of the source at a record: the open one, unless it is past the record or in another file."""
        if self._source is not None:
            open_file, next_record, reader = self._source
            self._source = None
            if open_file == file and next_record <= record:
                for _ in range(record - next_record):
                    next(reader)
                return reader
        return self._corpus.open(file, record, position)


class CachedCorpus:
    """A corpus with documents that come tokenized from the cache, or as text where the cache has no room."""

    def __init__(self, corpus: Corpus[str], store: Store, *, required: bool) -> None:
        self._corpus = corpus
        self._store = store
        self._required = required
        self._given_up = False

    def n_files(self) -> int:
        return self._store.fact("files", self._corpus.n_files)

    def splits_by_file(self, n_shards: int) -> bool:
        return self._store.fact(f"{n_shards} shards take files", lambda: self._corpus.splits_by_file(n_shards))

    def open(self, file: int, record: int, position: Any) -> Reader[Document]:
        if self._given_up:
            return self._corpus.open(file, record, position)
        return _CachedReader(self, file, record)

    def segment(self, file: int, number: int, before: Segment | None) -> Segment | None:
        """A segment, or None as soon as there is no room for more."""
        try:
            return None if self._given_up else self._store.segment(file, number, before)
        except NoRoomError as error:
            if self._required:
                raise
            _report(f"warning: {error}; going on without a cache")
            self._given_up = True
            return None

    def open_uncached(self, file: int, record: int, position: Any) -> Reader[str]:
        return self._corpus.open(file, record, position)


class _CachedReader:
    def __init__(self, corpus: CachedCorpus, file: int, record: int) -> None:
        self._corpus = corpus
        self._file = file
        self._number = 0  # of the next segment
        self._segment: Segment | None = None
        self._next = 0  # record in the file
        self._queue: deque[Encoded | None] = deque()
        self._uncached: Reader[str] | None = None  # the source itself, where there is no room for a cache
        self._skip_to(record)

    def _skip_to(self, record: int) -> None:
        while self._uncached is None:
            if self._segment and (self._segment.last or record <= self._next + len(self._queue)):
                for _ in range(record - self._next):
                    self._queue.popleft()
                self._next = record
                return
            self._advance(record)

    def _advance(self, record: int) -> None:
        """Take the next segment; without room for it, the source from ``record`` on."""
        before = self._segment
        segment = self._corpus.segment(self._file, self._number, before)
        if segment is None:
            first = before.first + len(before.documents) if before else 0
            position = before.end if before else None
            start = first if position is not None else record
            self._uncached = self._corpus.open_uncached(self._file, start, position)
            if position is not None:
                for _ in range(record - first):
                    next(self._uncached)
            self._next = record
            return
        self._segment, self._number = segment, self._number + 1
        self._queue = deque(segment.documents)
        self._next = segment.first

    def __next__(self) -> Any:
        while self._uncached is None and not self._queue:
            if self._segment is not None and self._segment.last:
                raise StopIteration
            self._advance(self._next)
        self._next += 1
        return self._queue.popleft() if self._uncached is None else next(self._uncached)

    def document(self, record: Any) -> Document | None:
        if self._uncached is not None:
            return self._uncached.document(record)
        # A copy: otherwise a shuffled group would keep every segment in memory that it took a document from.
        return None if record is None else Encoded(record.ids.copy(), record.chars)

    def position(self) -> Any:
        return None if self._uncached is None else self._uncached.position()

    def fraction_read(self) -> float:
        return 0.0


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
