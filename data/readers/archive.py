"""ZIP and TAR archives: each member is read by the reader of its kind, from the archive, without writing a file.

A position is the member's number times ``STEP`` plus the position within the member.
"""

import bz2
import functools
import gzip
import io
import lzma
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple, cast

from slm.data.bad_records import TALLY, BadRecordError
from slm.data.readers.bounds import LARGEST_DOCUMENT, LARGEST_RATIO, SMALL, ZIP_ERRORS, check_size, read_all
from slm.data.readers.reader import CHUNK, Raw, Reader, Reading

STEP = 1 << 44
"""Positions within a member: bytes of 16 TiB."""
UNPACK: dict[str, Callable[[BinaryIO], Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
TAR_ERRORS = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError)
HEAD = 4096

KindOf = Callable[[str, bytes], tuple[str | None, str]]
"""The kind of a file by its name and its first bytes."""


class Inside(NamedTuple):
    """A document of a member, or what is wrong with it."""

    name: str
    reader: Reader | None
    raw: Raw
    end: int
    """The position within the member."""

    @property
    def content(self) -> bytes:
        """What the document holds and its name, for comparisons of what was read."""
        if isinstance(self.raw, BadRecordError):
            return f"{self.name}\0{self.raw.reason}".encode("utf-8", "surrogatepass")
        held = getattr(self.raw, "content", self.raw)
        name = self.name.encode("utf-8", "surrogatepass") + b"\0"
        return name + (held if isinstance(held, bytes) else repr(held).encode("utf-8", "surrogatepass"))


class _Member(NamedTuple):
    number: int
    name: str
    size: int
    """Bytes, unpacked from the archive."""
    seekable: bool
    open: Callable[[], BinaryIO]


class Archive:
    """The reader of archives; which kind a member is and what reads it, the table of kinds says."""

    def __init__(
        self, members: Callable[[BinaryIO, int], Iterator[_Member]], kind_of: KindOf, readers: Mapping[str, Reader]
    ) -> None:
        self._members = members
        self._kind_of = kind_of
        self._readers = readers  # of the members, by kind

    def read(self, stream: BinaryIO, path: str, start: int, reading: Reading) -> Iterator[tuple[Inside, int]]:
        """The documents of all members from a position on. A member that cannot be read leaves the others untouched."""
        first, within = divmod(start, STEP)
        for member in self._members(stream, first):
            if _is_hidden(member.name):
                continue
            end = within if member.number == first else 0
            try:
                with member.open() as opened:
                    content = _content(opened, member)
                    name = f"{path}/{member.name}"
                    kind, wrong = self._kind_of(member.name, content.read(HEAD))
                    content.seek(0)
                    reader = self._readers.get(kind or "")
                    if reader is None:
                        _leave_out(path, member, kind, wrong)
                        continue
                    for raw, end in reader.read(content, name, end, reading):  # noqa: B020 (used after an error)
                        yield Inside(member.name, reader, raw, end), member.number * STEP + end
            except BadRecordError as error:
                yield Inside(member.name, None, error, end + 1), member.number * STEP + end + 1
            except ZIP_ERRORS as error:
                damaged = BadRecordError("a damaged or encrypted file in an archive", detail=error)
                yield Inside(member.name, None, damaged, end + 1), member.number * STEP + end + 1

    def parse(self, raw: Inside, end: int, reading: Reading) -> str:
        """The document's text. BadRecordError names the member."""
        try:
            if raw.reader is None:
                raise raw.raw
            return raw.reader.parse(raw.raw, raw.end, reading)
        except BadRecordError as error:
            at = error.place or (f"line {error.line}" if error.line else "")
            place = f"{raw.name}, {at}" if at else raw.name
            raise BadRecordError(error.reason, detail=error.detail, advice=error.advice, place=place) from error


def _content(opened: BinaryIO, member: _Member) -> BinaryIO:
    """A member's unpacked content, in memory where the archive cannot be read from any place."""
    unpack = UNPACK.get(os.path.splitext(member.name.lower())[1])
    if unpack is None:
        if not member.seekable:
            return io.BytesIO(read_all(opened))
        return cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, opened), CHUNK))
    limit = max(SMALL, min(LARGEST_RATIO * member.size, LARGEST_DOCUMENT))
    data = unpack(opened).read(limit + 1)
    if len(data) > limit:
        raise BadRecordError("packed: a part that unpacks to far more than text does, or to more than 256 MiB")
    return io.BytesIO(data)


def zip_members(stream: BinaryIO, first: int) -> Iterator[_Member]:
    """The files of a ZIP archive from a number on."""
    size = stream.seek(0, io.SEEK_END)
    try:
        archive = zipfile.ZipFile(stream)
    except ZIP_ERRORS as error:
        raise BadRecordError("ZIP archive: damaged", detail=error) from error
    with archive:
        infos = archive.infolist()
        total = sum(info.file_size for info in infos)
        if total > max(SMALL, LARGEST_RATIO * size):  # also where members share their packed bytes
            detail = f"{size:,} bytes unpack to {total:,}"
            raise BadRecordError("ZIP archive: it unpacks to far more than text does", detail=detail)
        for number, info in enumerate(infos):
            if number >= first and not info.is_dir():
                yield _Member(number, info.filename, info.file_size, True, functools.partial(_open, archive, info))


def _open(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> BinaryIO:
    """A member; BadRecordError for an encrypted one and for one that unpacks to far more than text does."""
    if info.flag_bits & 1:
        raise BadRecordError("an encrypted file in an archive")
    check_size(info, STEP)
    return cast(BinaryIO, archive.open(info))


def tar_members(stream: BinaryIO, first: int) -> Iterator[_Member]:
    """The files of a TAR archive from a number on; links and devices are none. A packed one is read forward only."""
    head = stream.read(HEAD)
    stream.seek(0)
    plain = isinstance(getattr(stream, "raw", None), io.FileIO) and head[257:262] == b"ustar"
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        import zstandard

        unpacker = zstandard.ZstdDecompressor(max_window_size=1 << 31)
        stream = cast(BinaryIO, unpacker.stream_reader(stream, read_across_frames=True))
    try:
        with tarfile.open(fileobj=stream, mode="r:" if plain else "r|*") as archive:
            number = -1
            while (info := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # otherwise they all stay in memory
                number += 1
                if number >= first and info.isreg():
                    opened = cast(BinaryIO, archive.extractfile(info))
                    yield _Member(number, info.name, info.size, plain, functools.partial(_same, opened))
    except TAR_ERRORS as error:
        raise BadRecordError("TAR archive: damaged, or not complete", detail=error) from error


def _same(opened: BinaryIO) -> BinaryIO:
    return opened


def _is_hidden(name: str) -> bool:
    return any(part == "__MACOSX" or (part.startswith(".") and part.strip(".")) for part in name.split("/"))


def _leave_out(path: str, member: _Member, kind: str | None, wrong: str) -> None:
    """Count a member that no reader knows, or another archive, which would have no bounds."""
    suffix = os.path.splitext(member.name)[1].lower() or "without a suffix"
    what = f"files in archives, {suffix}" + (f" ({wrong})" if wrong else "")
    if kind:
        what = f"an archive in an archive ({suffix}): unpack it first"
    TALLY.add(what, path=path, position=member.number, first=lambda: f"{path}: {member.name}")
