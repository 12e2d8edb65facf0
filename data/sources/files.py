"""Local text as documents: txt, md, jsonl and parquet, also gzip- and zstd-compressed.

Every reader returns raw documents, each with the position after it (a byte offset into the decompressed text, or a
row number), so that reading can resume after any of them.
"""

import functools
import glob
import gzip
import json
import os
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from data.config import LONGEST_DOCUMENT, WHOLE_FILE
from data.errors import UserError, excerpt, nearest
from data.sources.compressed import COMPRESSED_SUFFIXES, open_binary

CHUNK = 1 << 20
TEXT_SUFFIXES = (".txt", ".md", ".text", ".markdown", ".raw")
JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
TABLE_SUFFIXES = (".csv", ".tsv", ".tab")
BLANK_LINE = re.compile(rb"\n[ \t\r]*\n\s*")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

Raw = Any  # bytes for text and JSON lines, str or None for parquet


def file_format(path: str) -> str | None:
    """``text``, ``jsonl`` or ``parquet`` by the file's name (without .gz or .zst), None for any other name."""
    name = path.lower()
    for suffix in COMPRESSED_SUFFIXES:
        name = name.removesuffix(suffix)
    if name.endswith(TEXT_SUFFIXES):
        return "text"
    if name.endswith(JSON_SUFFIXES):
        return "jsonl"
    if name.endswith(".parquet"):
        return "parquet"
    return None


def is_table(path: str) -> bool:
    """Whether a file's name is that of a table, CSV or TSV (without .gz or .zst)."""
    name = path.lower()
    for suffix in COMPRESSED_SUFFIXES:
        name = name.removesuffix(suffix)
    return name.endswith(TABLE_SUFFIXES)


def expand(
    patterns: list[str], option: str = "data.files", text_field: str | None = None, *, plain_text: bool = True
) -> list[str]:
    """The files that paths, globs and folders name, each once, in order.

    A file named by its path may have any suffix (an unknown one is read as plain text); globs and folders give only
    files with a known suffix, and none that is hidden (a name with a dot first). With a ``text_field``, a folder's
    ``.json`` files without such records are left out, and one line names them. Without ``plain_text``, globs and
    folders give no txt or md, but tables. Raises UserError for a pattern that matches nothing.
    """
    found: dict[str, str] = {}
    known = ("text", "jsonl", "parquet") if plain_text else ("jsonl", "parquet")
    kinds = "txt, md, jsonl or parquet" if plain_text else "jsonl, json, csv, tsv or parquet"

    def wanted(path: str) -> bool:
        return file_format(path) in known or (not plain_text and is_table(path))

    for pattern in patterns:
        path = os.path.expanduser(pattern)
        if os.path.isdir(path):
            inside = sorted(
                str(each) for each in Path(path).rglob("*") if each.is_file() and not _is_hidden(each, path)
            )
            matches = [each for each in inside if wanted(each)]
            others = [each for each in matches if text_field and not _may_hold_records(each, text_field)]
            matches = [each for each in matches if each not in others]
            line = _left_out(tuple(os.path.relpath(each, path) for each in others), pattern, option, text_field or "")
            if not matches:
                raise UserError(line or f"{option}: the folder {pattern} holds no {kinds} file")
        elif os.path.isfile(path):
            matches = [path]
        elif glob.has_magic(path):
            inside = sorted(each for each in glob.glob(path, recursive=True) if os.path.isfile(each))
            matches = [each for each in inside if wanted(each)]
            if not matches:
                raise UserError(f"{option}: {pattern} matches no {kinds} file")
        else:
            folder = os.path.dirname(path) or "."
            near = nearest(os.path.basename(path), os.listdir(folder)) if os.path.isdir(folder) else ""
            raise UserError(f"{option}: there is no file {pattern}; {near or 'check the path'}")
        for each in matches:
            found.setdefault(os.path.realpath(each), each)
    return list(found.values())


def few_names(paths: Sequence[str]) -> str:
    """The first three paths, and how many more there are."""
    return ", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")


def _is_hidden(file: Path, folder: str) -> bool:
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


def _may_hold_records(path: str, text_field: str) -> bool:
    """False for a ``.json`` file whose first line is no JSON object with this key: settings, say, or a data format of
    their own. Programs leave such files anywhere, so one of them is no reason to refuse a folder."""
    name = path.lower()
    for suffix in COMPRESSED_SUFFIXES:
        name = name.removesuffix(suffix)
    if not name.endswith(".json"):
        return True
    try:
        with open_binary(path) as stream:
            first = next((line for line in stream if line.strip()), b"")
        row = json.loads(first.removeprefix(BYTE_ORDER_MARK))
    except (ValueError, RecursionError):
        return False
    except Exception:
        return True  # reading it says what is wrong with the file
    return isinstance(row, dict) and text_field in row


@functools.lru_cache(maxsize=64)
def _left_out(names: tuple[str, ...], folder: str, option: str, text_field: str) -> str:
    """Prints, once in a process, which of a folder's files are left out; returns the line, empty if there are none."""
    if not names:
        return ""
    few = few_names(names)
    files = "1 .json file" if len(names) == 1 else f"{len(names)} .json files"
    line = f"{option}: {files} of {folder} left out, because the first line has no {text_field!r} key: {few}"
    print(line, file=sys.stderr, flush=True)
    return line


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How files are read."""

    text_field: str = "text"
    document_bytes: int = WHOLE_FILE
    """A plain text is cut at a blank line after about this many bytes."""
    separator: str = "<|endoftext|>"
    """Ends a document within a plain text; empty: nothing does."""
    columns: tuple[tuple[str, str], ...] = ()
    """Of conversations: ``data.columns``."""

    @property
    def mark(self) -> bytes:
        """The separator as it stands in a file."""
        return self.separator.encode("utf-8", "replace")


def is_undivided(path: str, reading: Reading) -> bool:
    """Whether a file is plain text without a separator in its first chunk: then its documents are all of it."""
    if (file_format(path) or "text") != "text":
        return False
    if not reading.separator:
        return True
    with open_binary(path) as stream:
        return reading.mark not in (stream.read(CHUNK) or b"")


def read(path: str, start: int, reading: Reading) -> Iterator[tuple[Raw, int]]:
    """Raw documents of ``path`` from position ``start``, each with the position after it.

    Raises UserError, naming the file, for damaged and incomplete files and for missing columns.
    """
    kind = file_format(path) or "text"
    if kind == "parquet":
        yield from _read_parquet(path, start, reading.text_field)
        return
    try:
        with open_binary(path) as stream:
            yield from (_read_lines if kind == "jsonl" else _read_text)(stream, path, start, reading)
    except (gzip.BadGzipFile, EOFError, zlib.error, OSError) as error:
        raise UserError(f"{path} cannot be read ({excerpt(error)}): is the file complete?") from error
    except Exception as error:
        if type(error).__name__ == "ZstdError":
            raise UserError(f"{path} cannot be read ({excerpt(error)}): is the file complete?") from error
        raise


def extent(path: str) -> int | None:
    """The position at the end of a file, None where that is not known without reading it (compressed files)."""
    if path.lower().endswith(COMPRESSED_SUFFIXES):
        return None
    if file_format(path) != "parquet":
        return os.path.getsize(path)
    import pyarrow.parquet as pq

    return pq.read_metadata(path).num_rows


def parse(raw: Raw, path: str, end: int, reading: Reading) -> str:
    """The text of a raw document that ``read`` returned with the position ``end``; ``""`` where it has none."""
    kind = file_format(path) or "text"
    if kind == "parquet":
        return raw or ""
    if kind == "jsonl":
        return _parse_line(raw, path, end, reading)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _not_utf8(path, end, raw, error) from error


def _skip(stream: BinaryIO, count: int, path: str) -> None:
    """Move to ``count`` bytes from the start: by seeking, or in a compressed file by reading."""
    if path.lower().endswith(COMPRESSED_SUFFIXES):
        while count:
            chunk = stream.read(min(CHUNK, count))
            if not chunk:
                return
            count -= len(chunk)
    else:
        stream.seek(count)


def _read_lines(stream: BinaryIO, path: str, start: int, reading: Reading) -> Iterator[tuple[bytes, int]]:
    _skip(stream, start, path)
    position, rest = start, b""
    while True:
        chunk = stream.read(CHUNK)
        if not chunk:
            break
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            position += len(line) + 1
            yield line, position
    if rest:
        yield rest, position + len(rest)


def _parse_line(line: bytes, path: str, end: int, reading: Reading) -> str:
    if not line.strip():
        return ""
    try:
        row = json.loads(line.removeprefix(BYTE_ORDER_MARK))
    except UnicodeDecodeError as error:
        raise UserError(f"{_where(path, end, line)} is not UTF-8: convert the file to UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{_where(path, end, line)} is not a line of JSON ({excerpt(error)}): JSON lines hold one object each"
        ) from error
    if not isinstance(row, dict):
        raise UserError(f"{_where(path, end, line)} must be a JSON object with a {reading.text_field!r} key")
    if reading.text_field not in row:
        raise UserError(
            f"{_where(path, end, line)} has no key {reading.text_field!r}; its keys are {', '.join(map(repr, row))}: "
            "set data.text_field"
        )
    text = row[reading.text_field]
    if text is None:
        return ""
    if not isinstance(text, str):
        raise UserError(f"{_where(path, end, line)}: {reading.text_field!r} is not text but {excerpt(text)}")
    return text


def _where(path: str, end: int, line: bytes) -> str:
    """``path:line`` of the line that ends at ``end``, for an error: the lines before it are counted only now."""
    start, number = max(0, end - len(line) - 1), 1
    with open_binary(path) as stream:
        while start > 0:
            chunk = stream.read(min(CHUNK, start))
            if not chunk:
                break
            start -= len(chunk)
            number += chunk.count(b"\n")
    return f"{path}:{number}"


def _read_text(stream: BinaryIO, path: str, start: int, reading: Reading) -> Iterator[tuple[bytes, int]]:
    """Documents between separators; if the file's first chunk has no separator, the whole text, cut where it is long.

    A document's end depends only on the bytes from its start on, so reading may begin at any document.
    """
    buffer = stream.read(CHUNK)
    if buffer[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise UserError(f"{path} looks like UTF-16, not UTF-8: convert it (iconv -f UTF-16 -t UTF-8)")
    mark = reading.mark
    separated = bool(mark) and mark in buffer
    size = LONGEST_DOCUMENT if separated else reading.document_bytes
    if start == 0 and buffer.startswith(BYTE_ORDER_MARK):
        start = len(BYTE_ORDER_MARK)
    if start <= len(buffer):
        buffer = buffer[start:]
    else:
        if path.lower().endswith(COMPRESSED_SUFFIXES):
            _skip(stream, start - len(buffer), path)
        else:
            stream.seek(start)
        buffer = b""
    position, used, ended = start, 0, False
    while True:
        end, after = _document_end(buffer, used, size, ended, mark)
        if end is None:
            chunk = stream.read(CHUNK)
            ended = not chunk
            position += used
            buffer = buffer[used:] + chunk
            used = 0
            if ended and not buffer:
                return
            continue
        document = buffer[used:end]
        yield document.strip() if separated else document, position + after
        used = after


def _document_end(buffer: bytes, start: int, size: int, ended: bool, mark: bytes) -> tuple[int | None, int]:
    """The end of the document from ``start``, and the start of the next; None while more bytes are needed to tell."""
    separator = buffer.find(mark, start, start + size + len(mark)) if mark else -1
    if separator >= 0:
        return separator, separator + len(mark)
    left = len(buffer) - start
    if not ended and left < 2 * size + max(1, len(mark)):
        return None, start
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


def _not_utf8(path: str, end: int, raw: bytes, error: UnicodeDecodeError) -> UserError:
    """The error for a text file, with the first bad byte's offset and line.

    ``raw`` may be stripped, so the file is read up to the document's end to find the byte.
    """
    with open_binary(path) as stream:
        text = stream.read(end) or b""
    bad = text.rfind(raw) + error.start
    line = text.count(b"\n", 0, bad) + 1
    return UserError(
        f"{path}:{line} is not UTF-8 (byte 0x{raw[error.start]:02x} at offset {bad}): convert the file to UTF-8, for "
        "example with iconv -f LATIN1 -t UTF-8"
    )


def _read_parquet(path: str, start: int, text_field: str) -> Iterator[tuple[str | None, int]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=CHUNK) as file:
            schema = file.schema_arrow
            if text_field not in schema.names:
                raise UserError(
                    f"{path} has no column {text_field!r}; its columns are {', '.join(map(repr, schema.names))}: set "
                    "data.text_field"
                )
            kind = schema.field(text_field).type
            if pa.types.is_dictionary(kind):
                kind = kind.value_type
            if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
                raise UserError(f"{path}: the column {text_field!r} holds {kind}, not text: set data.text_field")
            row, group = 0, 0
            while group < file.num_row_groups and row + file.metadata.row_group(group).num_rows <= start:
                row += file.metadata.row_group(group).num_rows
                group += 1
            if group == file.num_row_groups:
                return
            batches = file.iter_batches(
                batch_size=64, row_groups=range(group, file.num_row_groups), columns=[text_field], use_threads=False
            )
            for batch in batches:
                skip = min(max(0, start - row), len(batch))
                row += skip
                for text in batch.column(0)[skip:].to_pylist():
                    row += 1
                    yield text, row
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path} cannot be read as parquet ({excerpt(error)}): is the file complete?") from error
