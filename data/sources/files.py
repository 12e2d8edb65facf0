"""Local text as documents: files of every kind that has a reader, also gzip- and zstd-compressed.

Every reader returns raw documents, each with the position after it (a byte offset into the decompressed text, or a
number of documents), so that reading can resume after any of them.
"""

import functools
import glob
import gzip
import io
import lzma
import os
import re
import sys
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from slm.data.bad_records import REPLACED, TALLY, BadRecordError
from slm.data.config import is_prepared
from slm.data.errors import UserError, excerpt, nearest
from slm.data.readers import plain_text
from slm.data.readers.reader import BYTE_ORDER_MARK, Raw, Reading, addressed, pieces, url_of
from slm.data.sources import kinds
from slm.data.sources.compressed import COMPRESSED_SUFFIXES, open_binary
from slm.data.sources.kinds import PLAIN, READERS, RECORDS, TABLES, file_format

__all__ = [
    "BYTE_ORDER_MARK",
    "COMPRESSED_SUFFIXES",
    "Raw",
    "Reading",
    "TextFile",
    "expand",
    "extent",
    "few_names",
    "file_format",
]

INSPECTED = 16 << 20
"""Bytes of a ``.json`` file in a folder by which it is told whether it holds records."""
SKIP = "data.on_bad=skip leaves out what cannot be read"
_WIDE_INSIDE = re.compile(r"(?:[^\0]\0){8,40}|(?:\0[^\0]){8,40}")
"""Letters of UTF-16 read as UTF-8: what PowerShell appends to a file that was UTF-8."""


class TextFile:
    """A file as documents. What is bad in it ends the run with a UserError, or is counted and left out."""

    def __init__(self, path: str, reading: Reading) -> None:
        self.path = path
        self._reading = reading
        kind, self._wrong = kinds.tell(path)
        self._kind = kind or "text"
        self._reader = READERS.get(self._kind)
        self._parse = (self._reader or READERS["text"]).parse
        self._may_be_malformed = self._kind not in (*PLAIN, "parquet")

    def read(self, start: int = 0) -> Iterator[tuple[Raw, int]]:
        """Raw documents from position ``start``, each with the position after it.

        Raises UserError, naming the file, for damaged and incomplete files and for missing columns.
        """
        position = start
        try:
            if self._reader is None:
                raise BadRecordError(f"a {kinds.title(self._kind)}, which is not read", advice=_convert(self._kind))
            if self._wrong and self._kind in kinds.IN_UTF8:
                raise _not_utf8(self._wrong)
            with open_binary(self.path) as stream:
                try:
                    if self._kind in PLAIN:
                        found = plain_text.documents(
                            stream, start, self._reading, separated=_is_separated(self.path, self._reading)
                        )
                    else:
                        found = self._reader.read(stream, self.path, start, self._reading)
                    for raw, position in found:
                        yield raw, position
                except Exception as error:
                    if not _is_damage(error):
                        raise
                    # The line that the damage is in, where positions are offsets.
                    offset = position if self._kind == "jsonl" else None
                    raise _incomplete(error, offset) from error
        except BadRecordError as error:
            self.leave_out(error, position)
        except Exception as error:
            if _is_damage(error):
                self.leave_out(_incomplete(error, None), position)
            elif isinstance(error, OSError):
                raise UserError(f"{self.path} cannot be read ({excerpt(error)}): is the file complete?") from error
            else:
                raise

    def text(self, raw: Raw, end: int) -> str:
        """The text of a raw document that ``read`` gave with the position ``end``; ``""`` where it has none.

        NUL characters and lone surrogates, which programs in C and UTF-8 cannot carry, become U+FFFD.
        """
        try:
            text = self._parse(raw, end, self._reading)
        except BadRecordError as error:
            self.leave_out(error, end)
            return ""
        url = url_of(text)  # which a text that is made of this one does not have
        if "\0" in text:
            if wide := _WIDE_INSIDE.search(text):
                offset = raw.start + raw.content.index(0) if isinstance(raw, plain_text.Piece) else None
                detail = f"{text.count(chr(0)):,} NUL characters, {excerpt(wide[0].replace(chr(0), ''))!r} among them"
                self.leave_out(BadRecordError("UTF-16 within other text", detail=detail, offset=offset), end)
                return ""
            self._replaced("a NUL character", text.count("\0"), raw, end)
            text = text.replace("\0", "\N{REPLACEMENT CHARACTER}")
        # Only an escape of JSON can make a lone surrogate of bytes that are UTF-8.
        if self._may_be_malformed and not text.isascii() and not (isinstance(raw, bytes) and b"\\u" not in raw):
            text, n_lone = _well_formed(text)
            if n_lone:
                self._replaced("a lone surrogate (half of a character)", n_lone, raw, end)
        return addressed(text, url) if url else text

    def leave_out(self, error: BadRecordError, position: int) -> None:
        """Count a bad record and go on; UserError with ``on_bad="stop"``, with ``auto`` for what is not converted."""
        stop = {"stop": True, "skip": False, "auto": self._kind not in kinds.CONVERTED}
        if stop[self._reading.on_bad]:
            advice = error.advice or "correct it"
            detail = f" ({error.detail})" if error.detail else ""
            raise UserError(f"{self._where(error)}: {error.reason}{detail}: {advice}; {SKIP}") from error
        TALLY.add(
            error.reason,
            path=self.path,
            position=position,
            first=lambda: self._where(error) + (f" ({error.detail})" if error.detail else ""),
        )

    def _where(self, error: BadRecordError) -> str:
        where = self.path
        if error.place:
            where = f"{where}, {error.place}"
        elif error.line is not None:
            where = f"{where}:{error.line}"
        elif error.offset is not None:
            where = f"{where}:{_line_number(self.path, error.offset)}"
        return where

    def _replaced(self, what: str, count: int, raw: Raw, end: int) -> None:
        def first() -> str:
            if isinstance(raw, plain_text.Piece):
                return f"{self.path}:{_line_number(self.path, raw.start + raw.content.index(0))}"
            if self._kind == "jsonl":
                return f"{self.path}:{_line_number(self.path, end - len(raw))}"
            return f"{self.path}, record {end}"

        TALLY.add(what, path=self.path, position=end, first=first, count=count, kind=REPLACED)


def _well_formed(text: str) -> tuple[str, int]:
    """The text without lone surrogates, and how many it had."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")  # joins halves that are a pair
        return whole, whole.count("\N{REPLACEMENT CHARACTER}") - text.count("\N{REPLACEMENT CHARACTER}")
    return text, 0


def read(path: str, start: int, reading: Reading) -> Iterator[tuple[Raw, int]]:
    """Raw documents of ``path`` from position ``start``, each with the position after it."""
    return TextFile(path, reading).read(start)


def parse(raw: Raw, path: str, end: int, reading: Reading) -> str:
    """The text of a raw document that ``read`` returned with the position ``end``; ``""`` where it has none."""
    return TextFile(path, reading).text(raw, end)


def is_plain(path: str) -> bool:
    """Whether the file's bytes are its text, so that it may be one long document."""
    return (file_format(path) or "text") in PLAIN


def may_be_long(path: str) -> bool:
    """Whether a document may be all of the file, so that it may be far longer than a batch."""
    return (file_format(path) or "text") in (*PLAIN, *kinds.ONE_DOCUMENT)


def is_undivided(path: str, reading: Reading) -> bool:
    """Whether a document is all of the file: a book, say, or plain text without a separator."""
    return may_be_long(path) and not (is_plain(path) and _is_separated(path, reading))


def extent(path: str) -> int | None:
    """The position at the end of a file, None where that is not known without reading it."""
    kind = file_format(path) or "text"
    if kind == "parquet":
        import pyarrow.parquet as pq

        return pq.read_metadata(path).num_rows
    if path.lower().endswith(COMPRESSED_SUFFIXES) or kind not in (*PLAIN, "jsonl"):
        return None
    return os.path.getsize(path)


def _is_separated(path: str, reading: Reading) -> bool:
    found = os.stat(path)
    return _search(path, found.st_size, found.st_mtime_ns, reading)


@functools.lru_cache(maxsize=1 << 16)
def _search(path: str, size: int, changed: int, reading: Reading) -> bool:
    try:
        with open_binary(path) as stream:
            return plain_text.is_separated(stream, reading)
    except Exception as error:
        if _is_damage(error):
            return False  # reading it says what is wrong
        raise


def _is_damage(error: Exception) -> bool:
    """Whether a compressed file's content is damaged or incomplete."""
    if isinstance(error, gzip.BadGzipFile | EOFError | zlib.error | lzma.LZMAError):
        return True
    return type(error).__name__ == "ZstdError" or (isinstance(error, OSError) and "Invalid data stream" in str(error))


def _incomplete(error: Exception, offset: int | None) -> BadRecordError:
    return BadRecordError("cannot be decompressed", detail=error, advice="is the file complete?", offset=offset)


def _not_utf8(wrong: str) -> BadRecordError:
    if not wrong.startswith(("UTF", "ISO")):
        return BadRecordError(wrong, advice="name files of text", line=1)
    return BadRecordError(
        f"{wrong}, not UTF-8", advice=f"convert the file, for example with iconv -f {wrong} -t UTF-8", line=1
    )


def _convert(kind: str) -> str:
    return "decompress it" if kind in ("gzip", "zstd", "bzip2", "xz") else "convert it to plain text"


def _line_number(path: str, offset: int) -> int:
    """The number of the line that holds a byte, for an error: the lines before it are counted only now."""
    number = 1
    with open_binary(path) as stream:
        parts = pieces(stream)
        while offset > 0 and (piece := next(parts, b"")):
            number += piece.count(b"\n", 0, offset)
            offset -= len(piece)
    return number


def expand(
    patterns: list[str], option: str = "data.files", text_field: str | None = None, *, plain_text: bool = True
) -> list[str]:
    """The files that paths, globs and folders name, each once, in order.

    A file named by its path may have any ending (an unknown one is read as plain text if it is text). Globs and folders
    give only files of a kind that has a reader, and none that is hidden (a name with a dot first); one line names the
    others by their endings. With a ``text_field``, a ``.json`` file of a folder must have it in its first record.
    Without ``plain_text``, only files of records and tables are taken. Raises UserError for a pattern that matches
    nothing.
    """
    found: dict[str, str] = {}
    wanted = tuple(READERS) if plain_text else (*RECORDS, *TABLES)
    for pattern in patterns:
        path = os.path.expanduser(pattern)
        if os.path.isdir(path) and is_prepared(path):
            raise UserError(
                f"{option}: {pattern} is a prepared corpus, which is all of a source: name it alone, as data={pattern}"
            )
        if os.path.isdir(path):
            inside = sorted(
                str(each) for each in Path(path).rglob("*") if each.is_file() and not _is_hidden(each, path)
            )
            matches = _take(inside, path, pattern, option, wanted, text_field)
        elif os.path.isfile(path):
            matches = [path]
            kind = file_format(path)
            if plain_text and kind is not None and kind not in wanted:
                raise UserError(f"{option}: {pattern} is a {kinds.title(kind)}, which is not read: {_convert(kind)}")
        elif os.path.exists(path):
            raise UserError(
                f"{option}: {pattern} is a pipe or a device, and text is read more than once: write it to a file first"
            )
        elif os.path.islink(path):
            raise UserError(f"{option}: {pattern} is a link to {os.readlink(path)}, which is not there")
        elif glob.has_magic(path):
            inside = sorted(each for each in glob.glob(path, recursive=True) if os.path.isfile(each))
            matches = _take(inside, os.path.dirname(path) or ".", pattern, option, wanted, None)
        else:
            folder = os.path.dirname(path) or "."
            near = nearest(os.path.basename(path), os.listdir(folder)) if os.path.isdir(folder) else ""
            raise UserError(f"{option}: there is no file {pattern}; {near or 'check the path'}")
        _check_packages(matches, option)
        for each in matches:
            found.setdefault(os.path.realpath(each), each)
    return list(found.values())


def _check_packages(paths: list[str], option: str) -> None:
    """UserError if a kind of file needs a package that is not installed."""
    by_kind: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        by_kind[file_format(path) or "text"].append(path)
    for kind, names in by_kind.items():
        if package := kinds.missing_package(kind):
            raise UserError(
                f"{option}: {len(names):,} x {kinds.title(kind)} ({few_names(names)}): the package {package}, which "
                "reads it, is not installed: pip install 'slm[documents]'"
            )


def few_names(paths: Sequence[str]) -> str:
    """The first three paths, and how many more there are."""
    return ", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")


def _take(
    paths: Iterable[str], folder: str, pattern: str, option: str, wanted: tuple[str, ...], text_field: str | None
) -> list[str]:
    """Those of a folder's or a glob's files that are read. One line names the others; UserError where there is none."""
    taken: list[str] = []
    left_out: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        kind, wrong = kinds.tell(path)
        ending = kinds.suffix(path) or "without an ending"
        if kind not in wanted or (wrong and not wrong.startswith("UTF")):
            left_out[ending].append(os.path.relpath(path, folder))
        elif text_field and ending == ".json" and not _may_hold_records(path, text_field):
            left_out[f".json without {text_field!r} in the first record"].append(os.path.relpath(path, folder))
        else:
            taken.append(path)
    groups = sorted(left_out.items(), key=lambda each: -len(each[1]))
    others = ", ".join(f"{len(names):,} {ending} ({few_names(names)})" for ending, names in groups)
    n_others = sum(map(len, left_out.values()))
    if not taken:
        what = "of text" if "text" in wanted else "of JSON lines, JSON, CSV, TSV or parquet"
        holds = f"holds no file {what}" if os.path.isdir(os.path.expanduser(pattern)) else f"matches no file {what}"
        raise UserError(f"{option}: {pattern} {holds}" + (f", but {others}" if others else ""))
    if others:
        _say(f"{option}: {pattern}: {len(taken):,} files are read, {n_others:,} left out: {others}")
    return taken


@functools.lru_cache(maxsize=64)
def _say(line: str) -> None:
    """Prints a line once in a process."""
    print(line, file=sys.stderr, flush=True)


def _is_hidden(file: Path, folder: str) -> bool:
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


def _may_hold_records(path: str, text_field: str) -> bool:
    """False for a ``.json`` file without that key in its first record: a program's settings, say, or its data.
    Programs leave such files anywhere, so one of them is no reason to refuse a folder."""
    found = os.stat(path)
    return _has_field(path, found.st_size, found.st_mtime_ns, text_field)


@functools.lru_cache(maxsize=1 << 16)
def _has_field(path: str, size: int, changed: int, text_field: str) -> bool:
    reading, its_reader = Reading(text_field=text_field), READERS[file_format(path) or "jsonl"]
    try:
        with open_binary(path) as stream:
            beginning = io.BytesIO(b"".join(_first(pieces(stream), INSPECTED)))
        for raw, end in its_reader.read(beginning, path, 0, reading):
            if raw:
                its_reader.parse(raw, end, reading)
                return True
    except BadRecordError:
        return False
    except Exception:
        return True  # reading it says what is wrong with the file
    return False


def _first(parts: Iterator[bytes], most: int) -> Iterator[bytes]:
    size = 0
    for part in parts:
        size += len(part)
        yield part
        if size >= most:
            return
