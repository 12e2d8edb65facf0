"""Plain text: documents between separators, or all of a file, cut at blank lines where it is long.

Tested in tests/data/sources/test_files.py.
"""

import re
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from slm.data.bad_records import BadRecordError
from slm.data.config import LONGEST_DOCUMENT
from slm.data.readers import reader
from slm.data.readers.encodings import advice
from slm.data.readers.reader import BYTE_ORDER_MARK, Reading

BLANK_LINE = re.compile(rb"\n[ \t\r]*\n\s*")
SEARCHED = 4 * LONGEST_DOCUMENT
"""Bytes from the beginning of a file in which its first separator is looked for."""


class Piece(NamedTuple):
    """A document as it stands in its file."""

    content: bytes
    start: int
    """Its offset in the file."""
    strip: bool
    """Whether white space around it belongs to the separators."""


def is_separated(stream: BinaryIO, reading: Reading) -> bool:
    """Whether the text from the stream's position on has a separator, in its first ``SEARCHED`` bytes."""
    mark = reading.mark
    if not mark:
        return False
    before, found = b"", 0
    while found < SEARCHED and (chunk := stream.read(reader.CHUNK)):
        found += len(chunk)
        if mark in chunk or (before and mark in before + chunk[: len(mark)]):
            return True
        before = chunk[1 - len(mark) :] if len(mark) > 1 else b""
    return False


class PlainText:
    """The reader. Positions are byte offsets."""

    def read(self, stream: BinaryIO, path: str, start: int, reading: Reading) -> Iterator[tuple[Piece, int]]:
        separated = is_separated(stream, reading)
        stream.seek(0)
        return documents(stream, start, reading, separated=separated)

    def parse(self, raw: Piece, end: int, reading: Reading) -> str:
        content = raw.content.strip() if raw.strip else raw.content
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError as error:
            before = len(raw.content) - len(raw.content.lstrip()) if raw.strip else 0
            offset = raw.start + before + error.start
            raise BadRecordError(
                "not UTF-8",
                detail=f"byte 0x{content[error.start]:02x} at offset {offset}",
                advice=advice(content),
                offset=offset,
            ) from error


def documents(stream: BinaryIO, start: int, reading: Reading, *, separated: bool) -> Iterator[tuple[Piece, int]]:
    """Documents between separators; where the file has none, the whole text, cut where it is long.

    A document's end depends only on the bytes from its start on, so reading may begin at any document.
    """
    size = LONGEST_DOCUMENT if separated else reading.document_bytes
    if start == 0 and stream.read(len(BYTE_ORDER_MARK)) == BYTE_ORDER_MARK:
        start = len(BYTE_ORDER_MARK)
    stream.seek(start)
    buffer, position = b"", start  # the buffer's own offset
    used, searched, ended = 0, 0, False
    while True:
        end, after = _document_end(buffer, used, searched, size, ended, reading.mark)
        if end is None:
            # So much that a long document is copied a few times, and not once per chunk.
            left = len(buffer) - used
            chunk = stream.read(max(reader.CHUNK, left if separated else 2 * size + len(reading.mark) - left))
            ended = not chunk
            position += used
            buffer, searched, used = buffer[used:] + chunk, max(0, after - used), 0
            if ended and not buffer:
                return
            continue
        yield Piece(buffer[used:end], position + used, separated), position + after
        used = searched = after


def _document_end(
    buffer: bytes, start: int, searched: int, size: int, ended: bool, mark: bytes
) -> tuple[int | None, int]:
    """The end of the document from ``start``, and the start of the next.

    None while more bytes are needed to tell, and the place up to which no mark begins. ``searched``: such a place.
    """
    separator = buffer.find(mark, max(start, searched), start + size + len(mark)) if mark else -1
    if separator >= 0:
        return separator, separator + len(mark)
    left = len(buffer) - start
    if not ended and left < 2 * size + max(1, len(mark)):
        return None, max(start, min(len(buffer), start + size + len(mark)) - len(mark))
    if left == 0:
        return None, start
    if left <= size:
        return len(buffer), len(buffer)
    low, high = start + size, min(start + 2 * size, len(buffer))
    blank = BLANK_LINE.search(buffer, low, high)
    if blank:
        cut = blank.end()
    else:
        cut = max(buffer.find(b"\n", low, high), buffer.find(b" ", low, high)) + 1
        if cut == 0:  # nothing to cut at: keep a character whole
            cut = high
            while cut < len(buffer) and cut > low and buffer[cut] & 0xC0 == 0x80:
                cut -= 1
    separator = buffer.find(mark, low, cut) if mark else -1
    if separator >= 0:
        return separator, separator + len(mark)
    return cut, cut
