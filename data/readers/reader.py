"""What a reader of one kind of file is: documents out of bytes, from any position on.

Tested in tests/data/sources/test_files.py.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal, Protocol

from slm.data.config import WHOLE_FILE

CHUNK = 1 << 20
"""Bytes read at a time."""
LONGEST_RECORD = 512 << 20
"""Bytes of a line of JSON lines or a value of a JSON array; a longer one is a bad record. It bounds the memory."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Addressed(str):
    """The text of a record that came from an address."""

    __slots__ = ("url",)
    url: str


def addressed(text: str, url: object) -> str:
    """The text with its address; without one the text alone."""
    if not isinstance(url, str):
        return text
    found = Addressed(text)
    found.url = url
    return found


def url_of(text: str) -> str:
    """The address of a text, empty where none is known."""
    return text.url if isinstance(text, Addressed) else ""


Raw = Any
"""A document that is not parsed yet, as its reader gives it."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How files are read."""

    text_field: str = "text"
    document_bytes: int = WHOLE_FILE
    """A plain text is cut at a blank line after about this many bytes."""
    separator: str = "<|endoftext|>"
    """Ends a document within a plain text; empty: nothing does."""
    url_field: str = ""
    """The column or key of a record's address, which its text then carries (``Addressed``); empty: none is read."""
    columns: tuple[tuple[str, str], ...] = ()
    """``data.columns``, for conversations."""
    on_bad: Literal["auto", "stop", "skip"] = "stop"
    """Whether a bad record ends the run, or is left out and counted (``slm.data.bad_records.TALLY``); ``auto``: left
    out if it is a document that is converted (PDF, say)."""

    @property
    def mark(self) -> bytes:
        """The separator as it stands in a file."""
        return self.separator.encode("utf-8", "replace")


class Reader(Protocol):
    """One kind of file. A reader has no state: everything that it needs is in its arguments.

    Reading and parsing are apart because every worker reads all records and parses only its own.
    """

    def read(self, stream: BinaryIO, path: str, start: int, reading: Reading) -> Iterator[tuple[Raw, int]]:
        """The raw documents from position ``start`` on, each with the position after it.

        ``stream`` is the file's decompressed content, at its beginning; it can ``seek``. ``path`` is for messages only.
        Positions are numbers that grow: byte offsets (text, JSON lines) or numbers of documents (the others). 0 is the
        beginning. A file that is one document yields ``(stream.read(), 1)``, and nothing from ``start`` 1 on.

        Raises BadRecordError where nothing further of the file can be read.
        """
        ...

    def parse(self, raw: Raw, end: int, reading: Reading) -> str:
        """The text of a raw document that ``read`` gave with the position ``end``; ``""`` where it has none.

        Raises BadRecordError where it has no text that can be read; the documents after it are read all the same.
        """
        ...


def chunk_at(stream: BinaryIO, first: bytes, start: int) -> tuple[bytes, int]:
    """The chunk that the byte ``start`` is in or ends, and where it begins; empty where the stream is shorter.

    ``first`` has been read from the stream's beginning.
    """
    buffer, position = first, 0
    while buffer and position + len(buffer) < start:
        position += len(buffer)
        buffer = stream.read(CHUNK)
    return buffer, position


def pieces(stream: BinaryIO) -> Iterator[bytes]:
    """The rest of the stream. What stands before damaged data comes before the error that they raise."""
    position = stream.tell()
    while True:
        try:
            piece = stream.read(CHUNK)
        except Exception:
            # Such a read loses what it has decompressed before the damage, and smaller ones do not.
            stream.seek(position)
            yield from iter(functools.partial(stream.read1, CHUNK), b"")  # type: ignore[attr-defined]
            raise
        if not piece:
            return
        position += len(piece)
        yield piece
