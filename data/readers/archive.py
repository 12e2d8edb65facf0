"""ZIP and TAR archives: each member is read by the reader of its kind, from the archive, without writing a file.

A position is the member's number times ``STEP`` plus the position within the member.
"""

import bz2
import gzip
import io
import lzma
import os
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple, cast

from data.bad_records import TALLY, BadRecordError
from data.readers.bounds import LARGEST_RATIO, SMALL, ZIP_ERRORS, read_all
from data.readers.reader import Raw, Reader, Reading

STEP = 1 << 44
"""Positions within a member: bytes of 16 TiB."""
NEEDS_ALL = ("parquet",)
"""Kinds whose reader moves about in the file: such members are held in memory."""
UNPACK: dict[str, Callable[[BinaryIO], Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
TAR_ERRORS = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError)
HEAD = 4096

KindOf = Callable[[str, bytes], str | None]
"""The kind of a file by its name and its first bytes."""


class Inside(NamedTuple):
    """A document of a member, or what is wrong with it."""

    name: str
    reader: Reader | None
    raw: Raw
    end: int
    """The position within the member."""


class _Member(NamedTuple):
    number: int
    name: str
    packed: int
    """Bytes in the archive; 0: not known."""
    open: Callable[[], BinaryIO]


class Archive:
    """The reader of archives; which kind a member is and what reads it, the table of kinds says."""

    def __init__(self, members: Callable[[BinaryIO, int], Iterator[_Member]], kind_of: KindOf) -> None:
        self._members = members
        self._kind_of = kind_of
        self._readers: Mapping[str, Reader] = {}

    def with_readers(self, readers: Mapping[str, Reader]) -> "Archive":
        """This reader, with those of the members."""
        self._readers = {kind: each for kind, each in readers.items() if not isinstance(each, Archive)}
        return self

    def read(self, stream: BinaryIO, path: str, start: int, reading: Reading) -> Iterator[tuple[Inside, int]]:
        """The documents of all members from a position on. A member that cannot be read leaves the others untouched."""
        first, within = divmod(start, STEP)
        left_out: Counter[str] = Counter()
        for member in self._members(stream, first):
            if _is_hidden(member.name):
                continue
            before = within if member.number == first else 0
            try:
                with member.open() as opened:
                    content = _Bounded(opened, member)
                    kind = self._kind_of(member.name, content.peek())
                    reader = self._readers.get(kind or "")
                    if reader is None:
                        _leave_out(path, member, left_out)
                        continue
                    whole = io.BytesIO(read_all(content.stream())) if kind in NEEDS_ALL else content.stream()
                    for raw, end in reader.read(cast(BinaryIO, whole), f"{path}/{member.name}", before, reading):
                        before = end
                        yield Inside(member.name, reader, raw, end), member.number * STEP + end
            except BadRecordError as error:
                yield Inside(member.name, None, error, before + 1), member.number * STEP + before + 1
            except (*ZIP_ERRORS, *TAR_ERRORS) as error:
                damaged = BadRecordError("a damaged or encrypted file of an archive", detail=str(error))
                yield Inside(member.name, None, damaged, before + 1), member.number * STEP + before + 1
                if isinstance(error, tarfile.TarError):
                    return

    def parse(self, raw: Inside, end: int, reading: Reading) -> str:
        """The document's text. BadRecordError names the member."""
        try:
            if raw.reader is None:
                raise raw.raw
            return raw.reader.parse(raw.raw, raw.end, reading)
        except BadRecordError as error:
            place = f"{raw.name}, {error.place}" if error.place else raw.name
            raise BadRecordError(error.reason, detail=error.detail, place=place) from error


class _Bounded(io.RawIOBase):
    """A member's unpacked content, up to so many times its packed size."""

    def __init__(self, opened: BinaryIO, member: _Member) -> None:
        unpack = UNPACK.get(os.path.splitext(member.name.lower())[1])
        self._stream = unpack(opened) if unpack else opened
        self._left = max(SMALL, LARGEST_RATIO * member.packed) if member.packed or unpack else None
        self._buffered = io.BufferedReader(self, 1 << 16)

    def peek(self) -> bytes:
        return self._buffered.peek(HEAD)[:HEAD]

    def stream(self) -> BinaryIO:
        return cast(BinaryIO, self._buffered)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        if self._left is not None:
            self._left -= len(data)
            if self._left < 0:
                raise BadRecordError("packed: a part that unpacks to far more than text does")
        buffer[: len(data)] = data
        return len(data)


def zip_members(stream: BinaryIO, first: int) -> Iterator[_Member]:
    """The files of a ZIP archive from a number on."""
    size = stream.seek(0, io.SEEK_END)
    try:
        archive = zipfile.ZipFile(stream)
    except ZIP_ERRORS as error:
        raise BadRecordError("ZIP archive: damaged", detail=str(error)) from error
    with archive:
        infos = archive.infolist()
        total = sum(info.file_size for info in infos)
        if total > max(SMALL, LARGEST_RATIO * size):  # also where members share their packed bytes
            detail = f"{size:,} bytes unpack to {total:,}"
            raise BadRecordError("ZIP archive: it unpacks to far more than text does", detail=detail)
        for number, info in enumerate(infos):
            if number >= first and not info.is_dir():
                opened = _opener(archive, info)
                yield _Member(number, info.filename, max(1, info.compress_size), opened)


def _opener(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Callable[[], BinaryIO]:
    return lambda: cast(BinaryIO, archive.open(info))


def tar_members(stream: BinaryIO, first: int) -> Iterator[_Member]:
    """The files of a TAR archive from a number on; links and devices are none. It is read in one direction."""
    try:
        with tarfile.open(fileobj=_unpacked(stream), mode="r|*") as archive:
            number = -1
            while (info := archive.next()) is not None:
                archive.members.clear()  # otherwise they all stay in memory
                number += 1
                if number >= first and info.isreg():
                    found = archive.extractfile(info)
                    assert found is not None
                    yield _Member(number, info.name, 0, lambda found=found: cast(BinaryIO, found))  # type: ignore[misc]
    except TAR_ERRORS as error:
        raise BadRecordError("TAR archive: damaged, or not complete", detail=str(error)) from error


def _unpacked(stream: BinaryIO) -> BinaryIO:
    """The stream, unpacked where it is Zstandard; tarfile itself unpacks gzip, bzip2 and xz."""
    first = stream.peek(4)[:4] if hasattr(stream, "peek") else b""
    if first != b"\x28\xb5\x2f\xfd":
        return stream
    import zstandard

    return cast(BinaryIO, zstandard.ZstdDecompressor(max_window_size=1 << 31).stream_reader(stream, read_across_frames=True))


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") and part not in (".", "..") or part == "__MACOSX" for part in name.split("/"))


def _leave_out(path: str, member: _Member, left_out: Counter[str]) -> None:
    """Count a member of no known kind, or another archive: its members would have no bounds."""
    suffix = os.path.splitext(member.name)[1].lower() or "without a suffix"
    left_out[suffix] += 1
    reason = f"files in archives that no reader knows ({suffix})"
    TALLY.add(reason, path=path, position=member.number, first=f"{path}: {member.name}")
