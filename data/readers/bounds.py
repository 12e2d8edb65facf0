"""What the readers of documents share: one document a file, the package that is missing, how large things may be.

Tested in tests/data/readers/office/test_office.py, tests/data/readers/test_archive.py.
"""

import importlib
import io
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import BinaryIO

from slm.data.bad_records import BadRecordError
from slm.data.errors import UserError
from slm.data.readers.reader import Reading

LARGEST_DOCUMENT = 256 << 20
"""Bytes of a file, or of an archive's member, that is converted as one document."""
LARGEST_PART = 64 << 20
"""Bytes of one part of a document that is a ZIP file (DOCX, ODT, EPUB), unpacked."""
LARGEST_RATIO = 1000
"""A member of an archive may unpack to this many times its packed size. Text seldom exceeds 20; DEFLATE ends at
1,032."""
SMALL = 4 << 20
"""Bytes, unpacked, up to which the ratio does not matter."""
ZIP_ERRORS = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError),
    *(NotImplementedError, ValueError, RuntimeError),
)
"""What ``zipfile`` raises for damaged and for encrypted files."""


class MissingPackageError(UserError):
    """The package that reads a kind of file is not installed."""


class OneDocument:
    """The reader of a kind of file that is one document each, which ``text`` converts."""

    def __init__(self, text: Callable[[bytes], str]) -> None:
        self._text = text

    def read(self, stream: BinaryIO, path: str, start: int, reading: Reading) -> Iterator[tuple[bytes, int]]:
        """The file's bytes, with the position 1."""
        if start == 0:
            yield read_all(stream), 1

    def parse(self, raw: bytes, end: int, reading: Reading) -> str:
        """The document's text. Raises BadRecordError for a document that cannot be read."""
        return self._text(raw)


def need(module: str, kind: str) -> ModuleType:
    """The module of an optional package, imported; MissingPackageError says what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingPackageError(
            f"{kind} files are read with the package {module.split('.')[0]}, which is not installed: pip install "
            "'slm[documents]'"
        ) from error


def read_all(stream: BinaryIO) -> bytes:
    """A whole document; BadRecordError if it is larger than ``LARGEST_DOCUMENT``."""
    data = stream.read(LARGEST_DOCUMENT + 1)
    if len(data) > LARGEST_DOCUMENT:
        raise BadRecordError(f"a document of more than {LARGEST_DOCUMENT >> 20} MiB")
    return data


def open_parts(data: bytes, kind: str) -> zipfile.ZipFile:
    """A document that is a ZIP file, opened; BadRecordError where it is damaged or encrypted."""
    if data.startswith(b"\xd0\xcf\x11\xe0"):  # an OLE file: office programs wrap encrypted documents in one
        raise BadRecordError(f"{kind}: encrypted, or in the format of before 2007 (save it anew, without a password)")
    try:
        return zipfile.ZipFile(io.BytesIO(data))
    except ZIP_ERRORS as error:
        raise BadRecordError(f"{kind}: damaged", detail=error) from error


def part(archive: zipfile.ZipFile, name: str, kind: str) -> bytes | None:
    """One part of a document, unpacked; None where there is none, BadRecordError where it is too large or damaged.

    ``zipfile`` never reads more of a part than the size it declares.
    """
    try:
        info = archive.getinfo(name)
    except KeyError:
        return None
    if info.flag_bits & 1:
        raise BadRecordError(f"{kind}: encrypted (save it without a password)")
    check_size(info, LARGEST_PART)
    try:
        return archive.read(info)
    except ZIP_ERRORS as error:
        raise BadRecordError(f"{kind}: damaged", detail=f"{name}: {error}") from error


def check_size(info: zipfile.ZipInfo, largest: int) -> None:
    """BadRecordError if a member declares more than ``largest`` bytes, or unpacks to far more than its packed size."""
    if info.file_size > largest:
        detail = f"{info.filename} has {info.file_size:,} bytes"
        raise BadRecordError(f"packed: a part of more than {largest >> 20} MiB", detail=detail)
    if info.file_size > SMALL and info.file_size > LARGEST_RATIO * info.compress_size:
        detail = f"{info.filename}: {info.compress_size:,} bytes unpack to {info.file_size:,}"
        raise BadRecordError("packed: a part that unpacks to far more than text does", detail=detail)
