"""CSV and TSV tables: each row is a document, the column ``data.text_field`` or all of its columns by their names."""

import codecs
import csv
import itertools
import sys
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from slm.data.bad_records import BadRecordError
from slm.data.errors import nearest
from slm.data.readers.html import decode
from slm.data.readers.reader import CHUNK, Reading, addressed

LONGEST_FIELD = 16 << 20
"""Characters of a field; a longer one is a quotation mark that nothing closes."""
SAMPLE = 64 << 10
"""Bytes by which delimiter and encoding are told."""
DELIMITERS = ",;\t|"
USUAL_FIELD = Reading().text_field
NAMED = 3
"""Tables without a text column. A separate line names each."""
_said: set[str] = set()


class Row(NamedTuple):
    """A row as its reader gives it."""

    names: list[str]
    """Names of the columns."""
    values: list[str]


class Table:
    """The reader of tables with a header. Positions are bytes."""

    def __init__(self, delimiter: str = "") -> None:
        self._delimiter = delimiter
        """Between columns; empty: told by the first lines."""

    def read(self, stream: BinaryIO, path: str, start: int, reading: Reading) -> Iterator[tuple[Row, int]]:
        """The rows from a position on, each with the position after it."""
        csv.field_size_limit(LONGEST_FIELD)
        sample = stream.read(SAMPLE)
        encoding, mark = _encoding(sample)
        beginning = sample[mark:].decode(encoding, "replace")
        delimiter = self._delimiter or _delimiter(beginning)
        # Spreadsheets for Macintosh end a line with CR alone.
        end = "\r" if "\r" in beginning and "\n" not in beginning else "\n"
        lines = _Lines(itertools.chain([sample], iter(lambda: stream.read(CHUNK), b"")), mark, encoding, end)
        rows = csv.reader(lines, delimiter=delimiter)
        names = _next(rows, lines)
        while names is not None and not any(map(str.strip, names)):
            names = _next(rows, lines)
        if names is None:
            return
        names = [name.strip() for name in names]
        if reading.text_field not in names:
            _check_columns(names, path, reading)
        if reading.url_field and reading.url_field not in names:
            detail = f"its columns are {', '.join(map(repr, names[:20]))}"
            reason = f"a table without the column {reading.url_field!r} for data.blocked_urls"
            raise BadRecordError(reason, detail=detail, advice="set data.url_field")
        if start > lines.position:
            lines.skip_to(start)
            rows = csv.reader(lines, delimiter=delimiter)
        while (values := _next(rows, lines)) is not None:
            yield Row(names, values), lines.position

    def parse(self, raw: Row, end: int, reading: Reading) -> str:
        """The text column's text, or a line ``name: value`` for each column that is not empty."""
        text = self._text(raw, end, reading)
        if not reading.url_field:
            return text
        at = raw.names.index(reading.url_field)
        return addressed(text, raw.values[at] if at < len(raw.values) else "")

    def _text(self, raw: Row, end: int, reading: Reading) -> str:
        names, values = raw
        if not any(map(str.strip, values)):
            return ""
        if reading.text_field in names:
            if len(values) > len(names):
                extra = f"{len(values) - len(names)} more"
                reason = "a row of a table with more values than columns (is a quotation mark missing?)"
                raise BadRecordError(reason, detail=extra, offset=end - 1)
            number = names.index(reading.text_field)
            return values[number] if number < len(values) else ""
        names = names + [""] * (len(values) - len(names))
        named = zip(names, values, strict=False)
        return "\n".join(
            f"{name}: {value.strip()}" if name else value.strip() for name, value in named if value.strip()
        )


class _Lines:
    """Lines as text, with the position in bytes after the last one. The csv module asks for as many as a row has."""

    def __init__(self, chunks: Iterator[bytes], mark: int, encoding: str, end: str) -> None:
        self._chunks = chunks
        self._encoding = encoding
        self._end = end.encode(encoding)
        self._buffer = b""
        self._at = 0
        self.position = 0
        self.ended = False
        """Whether a line behind the last one was asked for."""
        self._take(mark)

    def _take(self, count: int) -> None:
        """Pass over this many bytes."""
        while count > len(self._buffer) - self._at:
            count -= len(self._buffer) - self._at
            self.position += len(self._buffer) - self._at
            self._buffer, self._at = next(self._chunks, b""), 0
            if not self._buffer:
                return
        self._at += count
        self.position += count

    def skip_to(self, position: int) -> None:
        self._take(position - self.position)

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        step = len(self._end)
        search = self._at
        while True:
            end = self._buffer.find(self._end, search)
            while end >= 0 and (end - self._at) % step:  # within a character of UTF-16
                end = self._buffer.find(self._end, end + 1)
            if end >= 0:
                break
            chunk = next(self._chunks, b"")
            if not chunk:
                end = len(self._buffer) - step
                break
            search = max(0, len(self._buffer) - self._at - step)
            self._buffer, self._at = self._buffer[self._at :] + chunk, 0
            if len(self._buffer) > LONGEST_FIELD * 4:
                raise csv.Error("a line is longer than a field may be")
        line = self._buffer[self._at : end + step]
        if not line:
            self.ended = True
            raise StopIteration
        self._at += len(line)
        self.position += len(line)
        try:
            return line.decode(self._encoding)
        except UnicodeDecodeError:
            return decode(line)  # a line that came from another file


def _next(rows: Iterator[list[str]], lines: _Lines) -> list[str] | None:
    start = lines.position
    try:
        row = next(rows, None)
    except csv.Error as error:
        reason = "a table that cannot be read on (is a quotation mark not closed?)"
        raise BadRecordError(reason, detail=error, offset=lines.position) from error
    if row is not None and lines.ended:  # the csv module gives all lines from there on as one field
        raise BadRecordError("the rest of a table from a quotation mark on that is not closed", offset=start)
    return row


def _encoding(sample: bytes) -> tuple[str, int]:
    """The encoding, and the length of the mark that states it."""
    for mark, name in (
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
    ):
        if sample.startswith(mark):
            return name, len(mark)
    if sample.count(b"\0") > len(sample) // 4:
        return ("utf-16-be" if sample[::2].count(b"\0") > sample[1::2].count(b"\0") else "utf-16-le"), 0
    return "utf-8", 0


def _delimiter(sample: str) -> str:
    """The character that divides the first line, and if several do, the one that divides the next ones as often."""
    lines = [line for line in sample.splitlines()[:20] if line.strip()]
    if not lines:
        return ","

    def score(delimiter: str) -> tuple[int, int]:
        counts = [len(row) for row in csv.reader(lines[:-1] or lines, delimiter=delimiter)]
        return (sum(count == counts[0] for count in counts) if counts[0] > 1 else 0), counts[0]

    best = max(DELIMITERS, key=score)
    return best if score(best)[0] else ","


def _check_columns(names: list[str], path: str, reading: Reading) -> None:
    """Without the text column, all columns are text, and one line says so; but not where another column was named."""
    if reading.text_field != USUAL_FIELD:
        hint = nearest(reading.text_field, names)
        columns = ", ".join(map(repr, names[:20]))
        detail = f"no column {reading.text_field!r}; {hint or f'its columns are {columns}'}"
        raise BadRecordError("a table without the column data.text_field", detail=detail)
    if path in _said or len(_said) > NAMED:
        return
    _said.add(path)
    columns = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    line = f"{path} has no column {reading.text_field!r}: a document is a row with all its columns ({columns})"
    if len(_said) > NAMED:
        line = f"more tables have no column {reading.text_field!r}, and are read as {path} is: a document is a row"
    print(f"{line}; data.text_field=NAME reads one column", file=sys.stderr, flush=True)


CSV = Table()
TSV = Table("\t")
