"""Records of files: JSON lines, JSON arrays, tables (CSV, TSV) and parquet, also compressed, each with its place.

A record that cannot be parsed is one with an error, and reading goes on behind it where that is possible.

Tested in tests/data/sources/conversations/test_chat_files.py.
"""

import codecs
import csv
import functools
import gzip
import io
import itertools
import json
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from slm.data.bad_records import BadRecordError
from slm.data.chat import message_trees
from slm.data.errors import UserError, one_line
from slm.data.readers import json_records
from slm.data.readers.encodings import advice, not_text
from slm.data.readers.json_records import RepeatedKeyError, hook_once
from slm.data.sources import kinds
from slm.data.sources.compressed import open_binary

_BATCH = 64
"""Rows of a parquet file read at a time."""
_CHUNK = 1 << 20
"""Bytes that are buffered and looked at ahead."""
_LOOKED_AT = 4096
"""Bytes by which an encoding is told."""
NOT_UTF8 = "it is not UTF-8"
_SPEAKER = {"role", "from", "speaker", "author", "sender"}
"""Fields of a turn: a list of objects with one of them is a conversation and holds no records."""
_SPREADSHEETS = (".xlsx", ".xlsm", ".xls", ".ods", ".numbers")
_ESCAPED = re.compile(r"[\udc80-\udcff]")
"""Bytes that are not UTF-8, as ``surrogateescape`` reads them."""


@dataclass(frozen=True)
class Record:
    """A record of a file, parsed, and where it stands."""

    value: Any
    where: str
    """``path:line``, or of parquet ``path: row N``."""
    error: str = ""
    """Why it could not be parsed."""
    last: bool = False
    """Whether the file cannot be read behind it."""


def read(path: str, start: int = 0) -> Iterator[Record]:
    """The records of ``path`` from record number ``start``. UserError for files that cannot be read at all."""
    records = _records(path, 0)
    first = next(records, None)
    if first is not None and message_trees.is_row(first.value):
        return itertools.islice(_whole_trees(itertools.chain([first], records)), start, None)
    if start:
        return _records(path, start)
    return itertools.chain([] if first is None else [first], records)


def _records(path: str, start: int) -> Iterator[Record]:
    kind = file_kind(path)
    if kinds.suffix(path) in _SPREADSHEETS:
        raise UserError(f"{path} is a spreadsheet: save its table as CSV (UTF-8), and name that file")
    if kind == "text":
        raise UserError(
            f"{path} is plain text: conversations come as JSON lines, JSON, CSV or parquet (data=local reads text)"
        )
    if kind == "parquet":
        return _read_parquet(path, start)
    every = _to_the_end(path, _read_table if kind == "table" else functools.partial(_read_json, skipped=start))
    return (each for each in itertools.islice(every, start, None) if each is not None)


Lines = Callable[["_Place", io.BufferedReader], Iterator[Record | None]]
"""All records of a stream. Those that the caller does not want may be None."""


def _to_the_end(path: str, lines: Lines) -> Iterator[Record | None]:
    """The records of a file, the last of them the place where it is damaged."""
    place = _Place(path)
    try:
        with open_binary(path) as stream:
            steps = _Steps(stream)
            last: Record | None = None
            before = False
            for record in lines(place, _utf8(path, steps)):
                if before:
                    yield last
                before, last = True, record
            if steps.damage is None:
                if before:
                    yield last
                return
            if before and (last is None or not last.error):
                yield last
                before = False
            place.line += not before  # the damaged record's own line
            why = f"it cannot be read ({one_line(steps.damage)}): is the file complete?"
            yield Record(None, place.where, why, last=True)
    except (OSError, EOFError) as error:
        raise UserError(f"{path} cannot be read ({one_line(error)}): is the file complete?") from error


def file_kind(path: str) -> str:
    """``json`` (lines, or arrays), ``table``, ``parquet`` or ``text``, by the file's name; ``json`` for any other."""
    kind = kinds.suffix_kind(path)
    if kind in ("csv", "tsv"):
        return "table"
    return kind if kind in ("parquet", "text") else "json"


class _Place:
    """How far a file has been read."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.line = 0
        self._encoding = ""

    @property
    def where(self) -> str:
        return f"{self.path}:{self.line}"

    def not_utf8(self, content: bytes) -> str:
        """What is wrong with a record that is not UTF-8; its encoding is guessed by the first such record."""
        if not self._encoding:
            with open_binary(self.path) as stream:  # a record may be too short to tell
                beginning = stream.read(_CHUNK)
            try:
                beginning[:-4].decode()
            except UnicodeDecodeError:
                content = beginning
            self._encoding = advice(content)
        return f"{NOT_UTF8}: {self._encoding}"


class _Steps(io.RawIOBase):
    """The bytes of a stream up to where its compressed data is damaged."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.damage: BaseException | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._stream.read1(len(buffer)) if self.damage is None else b""  # type: ignore[attr-defined]
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            self.damage, data = error, b""
        except Exception as error:
            if type(error).__name__ != "ZstdError":
                raise
            self.damage, data = error, b""
        buffer[: len(data)] = data
        return len(data)


def _utf8(path: str, steps: _Steps) -> "io.BufferedReader[Any]":
    """The file's bytes as UTF-8, without a byte order mark. UTF-16 with its mark is converted.

    UserError for UTF-16 without one, and for other encodings that a file's beginning tells.
    """
    buffered: io.BufferedReader[Any] = io.BufferedReader(steps, _CHUNK)
    beginning = buffered.peek(_LOOKED_AT)[:_LOOKED_AT]
    first, wide = beginning[:4], not_text(beginning)
    if first[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) and wide.startswith("UTF-16"):
        return io.BufferedReader(_Recoded(codecs.getreader("utf-16")(buffered, "replace")))
    if wide.startswith(("UTF", "ISO")):
        raise UserError(f"{path} looks like {wide}, not UTF-8: convert it (iconv -f {wide} -t UTF-8)")
    if first[:3] == codecs.BOM_UTF8:
        buffered.read(3)
    return buffered


class _Recoded(io.RawIOBase):
    """Characters of a reader as UTF-8."""

    def __init__(self, reader: codecs.StreamReader) -> None:
        self._reader = reader
        self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            text = self._reader.read(1 << 16)
            if not text:
                return 0
            self._left = text.encode("utf-8", "surrogatepass")
        n = min(len(buffer), len(self._left))
        buffer[:n] = self._left[:n]
        self._left = self._left[n:]
        return n


def _read_json(place: _Place, stream: io.BufferedReader, skipped: int) -> Iterator[Record | None]:
    """The records of JSON lines, of a JSON array, and of objects over several lines; None for the ``skipped`` first."""
    begun, first = b"", stream.read(1)
    while first and first.isspace():
        begun, first = begun + first, stream.read(1)
    if first == b"[" and not _is_line(first + stream.peek(_CHUNK)):
        yield from _read_values(place, begun + first, stream)
        return
    number = 0  # records: blank lines are none
    place.line = begun.count(b"\n")
    for line in itertools.chain([first + stream.readline()] if first else [], stream):
        place.line += 1
        if not line.strip():
            continue
        if number == 0 and _goes_on(line):
            yield from _read_values(place, begun + line, stream)
            return
        number += 1
        alone = number == 1 and not stream.peek(1)
        if number <= skipped and line.endswith(b"\n") and not alone:
            yield None
            continue
        try:
            value = json.loads(line, object_pairs_hook=hook_once())
            if alone and (inner := _only_list(value)):
                yield from (Record(each, f"{place.path}: record {n}") for n, each in enumerate(inner, 1))
                return
            yield Record(value, place.where)
        except RepeatedKeyError as error:
            yield Record(None, place.where, str(error))
        except UnicodeDecodeError:
            yield Record(None, place.where, place.not_utf8(line))
        except (ValueError, RecursionError) as error:
            yield Record(None, place.where, f"it is not a line of JSON ({one_line(error)})")


def _is_line(head: bytes) -> bool:
    """Whether a file that begins so has an array in each line, and is none over all lines."""
    line, _, rest = head.partition(b"\n")
    if not rest.strip():
        return False
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _goes_on(line: bytes) -> bool:
    """Whether a file's first line begins an object that ends on another line."""
    end = line.rstrip()
    if not line.startswith(b"{") or not end.endswith((b"{", b"[", b",")):
        return False
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return True
    return False


def _read_values(place: _Place, begun: bytes, stream: BinaryIO) -> Iterator[Record | None]:
    """The items of an array, or objects one after another; of a single object that holds one list of objects, these."""
    alone: Record | None = None  # the first value, as long as it is the only one and in no array
    count = 0
    try:
        for found in json_records.values(stream, begun):
            place.line = found.line
            record = Record(found.value, place.where)
            if isinstance(found.value, json_records.Unreadable):
                reason = found.value.reason
                record = Record(None, place.where, NOT_UTF8 if reason in NOT_UTF8 else reason)
            count += 1
            if count == 1 and not found.inside:
                alone = record
                continue
            if alone is not None:
                yield alone
                alone = None
            yield record
    except BadRecordError as error:
        if alone is not None:
            yield alone
        place.line = error.line or place.line
        yield Record(None, place.where, f"it is {error}" + (f" ({error.detail})" if error.detail else ""), last=True)
        return
    if alone is not None:
        inner = _only_list(alone.value)
        if inner is None:
            yield alone
        else:
            yield from (Record(each, f"{place.path}: record {n}") for n, each in enumerate(inner, 1))


def _only_list(value: Any) -> list[Any] | None:
    """The records of an object that holds them in one list (``{"data": [...]}``) and is none itself."""
    if not isinstance(value, dict) or "messages" in value or "conversations" in value or "conversation" in value:
        return None
    lists = [each for each in value.values() if isinstance(each, list) and each and isinstance(each[0], dict)]
    if len(lists) != 1 or (_SPEAKER & lists[0][0].keys() and not message_trees.is_row(lists[0][0])):
        return None
    return [each["row"] if isinstance(each, dict) and isinstance(each.get("row"), dict) else each for each in lists[0]]


def _read_table(place: _Place, stream: io.BufferedReader) -> Iterator[Record | None]:
    """The rows of a table. Its first line has the names of the columns."""
    csv.field_size_limit(1 << 28)
    lines = io.TextIOWrapper(stream, "utf-8", errors="surrogateescape", newline="")
    header, before = lines.readline(), 0
    named = re.fullmatch(r'"?sep=(.)"?\s*', header)  # Excel's own line
    if named:
        header, before = lines.readline(), 1
    place.line = before + 1
    delimiter = named[1] if named else max("\t,;|", key=header.count)
    rows = csv.reader(itertools.chain([header], lines), delimiter=delimiter, strict=True)
    try:
        names = [each.strip() for each in next(rows, [])]
    except csv.Error as error:
        yield Record(None, place.where, f"the names of its columns cannot be read ({one_line(error)})", last=True)
        return
    if twice := next((each for each in names if each and names.count(each) > 1), None):
        yield Record(None, place.where, f"its first line names the column {twice!r} more than once", last=True)
        return
    while True:
        begins = before + rows.line_num + 1
        try:
            row = next(rows, None)
        except csv.Error as error:
            place.line = begins
            yield Record(None, place.where, f"it is no row of a table ({one_line(error)})")
            continue
        if row is None:
            return
        place.line = begins
        if not row:
            continue
        if _ESCAPED.search(cells := " ".join(row)):
            yield Record(None, place.where, place.not_utf8(cells.encode("utf-8", "surrogateescape")))
        elif len(row) < len(names) or any(row[len(names) :]):
            yield Record(None, place.where, f"it has {len(row)} columns, and the first line names {len(names)}")
        else:
            yield Record(dict(zip(names, row, strict=False)), place.where)


def _read_parquet(path: str, start: int) -> Iterator[Record]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            for batch in file.iter_batches(batch_size=_BATCH, use_threads=False):
                if number + len(batch) <= start:
                    number += len(batch)
                    continue
                for at in range(max(0, start - number), len(batch)):
                    yield row_of(batch, at, f"{path}: row {number + at + 1}")
                number += len(batch)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path} cannot be read as parquet ({one_line(error)}): is the file complete?") from error


def row_of(batch: Any, at: int, where: str) -> Record:
    """The row number ``at`` of a batch or a table of Arrow's."""
    values = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            values[name] = _text(column[at].as_py())
        except UnicodeDecodeError:
            return Record(None, where, f"its column {name!r} is not UTF-8")
    return Record(values, where)


def _text(value: Any) -> Any:
    """A value of Arrow's, with text in place of bytes."""
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, dict):
        return {name: _text(each) for name, each in value.items()}
    return [_text(each) for each in value] if isinstance(value, list) else value


def _whole_trees(records: Iterator[Record]) -> Iterator[Record]:
    """Rows of messages as one record for each tree. A tree's rows stand together."""
    group: list[Record] = []
    for record in records:
        tree = message_trees.tree_of(record.value)
        if group and tree != message_trees.tree_of(group[0].value):
            yield Record(message_trees.join([each.value for each in group]), group[0].where)
            group = []
        if tree is None:
            yield record
        else:
            group.append(record)
    if group:
        yield Record(message_trees.join([each.value for each in group]), group[0].where)
