"""Conversations from local files and from rows of a data set: JSON lines, JSON arrays and parquet, also compressed.

A record becomes a document of ``data.chat.formats``. A record that is no conversation is left out, or ends the run
(``data.on_bad``).
"""

import functools
import gzip
import json
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from data.chat.formats import TITLES, BadRecordError, Format, read_record, to_document
from data.errors import UserError, one_line
from data.readers.reader import BYTE_ORDER_MARK
from data.sources import files
from data.sources.compressed import open_binary
from data.sources.corpus import Reader
from data.storage import stamps

_BATCH = 64
"""Rows of a parquet file read at a time."""
INSPECTED_BYTES = 64 << 20
"""Of conversations that are looked at before training; what follows is read as it comes."""


@dataclass(frozen=True)
class Record:
    """A record of a file, parsed, and where it stands."""

    value: Any
    where: str
    """``path:line``, or ``path: record N``."""
    error: str = ""
    """Why it could not be parsed."""


def read(path: str, start: int = 0) -> Iterator[Record]:
    """The records of ``path`` from record number ``start``. UserError for damaged and incomplete files."""
    kind = files.file_format(path) or "jsonl"
    if kind == "text":
        raise UserError(
            f"{path} is plain text: conversations come as JSON lines, JSON or parquet (data=local reads text)"
        )
    if kind == "parquet":
        yield from _read_parquet(path, start)
        return
    try:
        with open_binary(path) as stream:
            first = stream.read(1)
            while first in (b" ", b"\n", b"\r", b"\t", b"\xef", b"\xbb", b"\xbf"):  # white space, byte order mark
                first = stream.read(1)
            if first == b"[":
                yield from _read_array(path, first + stream.read(), start)
                return
        with open_binary(path) as stream:
            yield from _read_lines(path, stream, start)
    except (gzip.BadGzipFile, EOFError, zlib.error, OSError) as error:
        raise UserError(f"{path} cannot be read ({one_line(error)}): is the file complete?") from error
    except UserError:
        raise
    except Exception as error:
        if type(error).__name__ == "ZstdError":
            raise UserError(f"{path} cannot be read ({one_line(error)}): is the file complete?") from error
        raise


def _read_array(path: str, content: bytes, start: int) -> Iterator[Record]:
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON ({one_line(error)}): correct it, or give JSON lines") from error
    for number, value in enumerate(values[start:], start + 1):
        yield Record(value, f"{path}: record {number}")


def _read_lines(path: str, stream: Any, start: int) -> Iterator[Record]:
    number = 0  # records: blank lines are none
    for at, line in enumerate(stream, 1):
        if not line.strip():
            continue
        number += 1
        if number <= start:
            continue
        where = f"{path}:{at}"
        try:
            yield Record(json.loads(line.removeprefix(BYTE_ORDER_MARK)), where)
        except UnicodeDecodeError:
            yield Record(None, where, "it is not UTF-8")
        except (ValueError, RecursionError) as error:
            yield Record(None, where, f"it is not a line of JSON ({one_line(error)})")


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
                for row in batch.to_pylist():
                    number += 1
                    if number > start:
                        yield Record(row, f"{path}: row {number}")
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path} cannot be read as parquet ({one_line(error)}): is the file complete?") from error


def to_conversation(record: Record, *, stop: bool) -> tuple[Format, str] | None:
    """The record's format and document; None where it is no conversation. With ``stop`` that is a UserError."""
    try:
        if record.error:
            raise BadRecordError(record.error)
        kind, conversation = read_record(record.value)
    except BadRecordError as error:
        if stop:
            raise UserError(
                f"{record.where}: {error}; correct it, or leave such records out (data.on_bad=skip)"
            ) from None
        return None
    return kind, to_document(conversation)


class ChatFileCorpus:
    """Files of conversations. Every shard reads all of them and takes its own records."""

    def __init__(self, paths: tuple[str, ...], *, stop: bool) -> None:
        self._paths = paths
        self._stop = stop

    def n_files(self) -> int:
        return len(self._paths)

    def splits_by_file(self, n_shards: int) -> bool:
        return False

    def open(self, file: int, record: int, position: Any) -> Reader[str]:
        return _ChatReader(self._paths[file], record, self._stop)


class _ChatReader:
    def __init__(self, path: str, record: int, stop: bool) -> None:
        self._records = read(path, record)
        self._stop = stop

    def __next__(self) -> Record:
        return next(self._records)

    def document(self, record: Record) -> str | None:
        found = to_conversation(record, stop=self._stop)
        return None if found is None else found[1]

    def position(self) -> Any:
        return None  # the record's number is enough

    def fraction_read(self) -> float:
        return 0.0


@dataclass
class Findings:
    """What is in files of conversations."""

    formats: Counter[Format] = field(default_factory=Counter)
    bad: int = 0
    first_bad: str = ""
    """The first record that is no conversation, with its file and line, and why."""
    complete: bool = True
    """Whether everything was read."""

    @property
    def conversations(self) -> int:
        """Records that are conversations."""
        return self.formats.total()

    def line(self, *, pairs: bool = False) -> str:
        """One line on what was found. ``pairs``: both answers of preference pairs are used."""
        more = {} if pairs else {"preference": " (the chosen answers are learned)"}
        found = self.formats.most_common()
        kinds = ", ".join(f"{count:,} {TITLES[kind]}{more.get(kind, '')}" for kind, count in found)
        text = f"conversations: {kinds or 'none'}" + ("" if self.complete else ", and more behind them")
        if self.bad:
            text += f"; left out {self.bad:,} bad record{'s' if self.bad > 1 else ''}, the first: {self.first_bad}"
        return text


def check_pairs(paths: tuple[str, ...]) -> None:
    """UserError where no record of the files is a preference pair."""
    findings = inspect(paths)
    if findings.formats and not findings.formats["preference"]:
        raise UserError(
            f"there is no preference pair in the files ({findings.line()}): preference.loss needs records with prompt, "
            "chosen and rejected"
        )


def inspect(paths: tuple[str, ...], *, stop: bool = False) -> Findings:
    """What the files hold, up to ``INSPECTED_BYTES`` of conversations.

    Raises UserError where none of the records is a conversation, and with ``stop`` at the first that is none.
    """
    return _inspect(stamps(paths), stop)


@functools.lru_cache(maxsize=8)
def _inspect(stamped: tuple[Any, ...], stop: bool) -> Findings:
    findings, size = Findings(), 0
    for path, *_ in stamped:
        for record in read(path):
            found = to_conversation(record, stop=stop)
            if found is not None:
                findings.formats[found[0]] += 1
                size += len(found[1])
            else:
                findings.bad += 1
                if findings.bad == 1:
                    findings.first_bad = f"{record.where}: {_reason(record)}"
            if size > INSPECTED_BYTES:
                findings.complete = False
                return findings
    if not findings.conversations:
        raise UserError(
            f"there is no conversation in the files; the first record is bad: {findings.first_bad}"
            if findings.bad
            else "there is no conversation in the files: they are empty"
        )
    return findings


def _reason(record: Record) -> str:
    try:
        if not record.error:
            read_record(record.value)
    except BadRecordError as error:
        return str(error)
    return record.error
