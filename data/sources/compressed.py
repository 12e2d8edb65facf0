"""Opening files that may be compressed, so that a file that ends too early raises and never looks like a shorter one.

gzip files may have several members and Zstandard files several frames, one after another. A file that is cut exactly
between two of them is a complete file, so that cannot be noticed.
"""

import bz2
import gzip
import io
import lzma
import os
from typing import BinaryIO, cast

COMPRESSED_SUFFIXES = (".gz", ".zst", ".bz2", ".xz")
_READ = 1 << 16
"""Compressed bytes read at a time."""
_LARGEST_WINDOW = 1 << 31
"""Bytes of memory that a Zstandard file may ask for: as many as ``zstd --long=31`` does, its most."""


class IncompleteFileError(EOFError):
    """The compressed data ends before its own end mark."""


def open_binary(path: str) -> BinaryIO:
    """The decompressed content of ``path``, by the end of its name.

    Reading to the end of an incomplete file raises EOFError, and damaged data raises what the format's library does.
    """
    name = path.lower()
    if not name.endswith(COMPRESSED_SUFFIXES):
        return open(path, "rb")
    if os.path.getsize(path) == 0:
        raise IncompleteFileError("the file has 0 bytes, so it is not valid gzip, bzip2, xz or Zstandard")
    if name.endswith(".gz"):
        return cast(BinaryIO, gzip.open(path, "rb"))
    if name.endswith(".bz2"):
        return cast(BinaryIO, bz2.open(path, "rb"))
    if name.endswith(".xz"):
        return cast(BinaryIO, lzma.open(path, "rb"))
    return cast(BinaryIO, io.BufferedReader(_ZstdReader(path), buffer_size=_READ))


class _ZstdReader(io.RawIOBase):
    """The frames of a Zstandard file. The library's own reader takes the end of the file for the end of a frame."""

    def __init__(self, path: str) -> None:
        import zstandard

        self._file = open(path, "rb")  # noqa: SIM115 (closed by close)
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW)
        self._frame: zstandard.ZstdDecompressionObj | None = None  # None: between two frames
        self._input = b""
        self._output = memoryview(b"")
        self._position = 0  # in the decompressed content

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to an offset from the beginning or from here, by reading what is between."""
        if whence == io.SEEK_CUR:
            offset += self._position
        elif whence != io.SEEK_SET:
            raise io.UnsupportedOperation("the end is not known")
        if offset < self._position:
            self._file.seek(0)
            self._frame, self._input, self._output, self._position = None, b"", memoryview(b""), 0
        while self._position < offset and self.read(min(_READ, offset - self._position)):
            pass
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # typeshed's Buffer is newer than 3.11
        while not self._output:
            if not self._input:
                self._input = self._file.read(_READ)
            if not self._input:
                if self._frame is not None:
                    raise IncompleteFileError("the compressed data ends within a frame")
                return 0
            if self._frame is None:
                self._frame = self._decompressor.decompressobj()
            self._output = memoryview(self._frame.decompress(self._input))
            self._input = b""
            if self._frame.eof:
                self._input, self._frame = self._frame.unused_data, None
        n_bytes = min(len(buffer), len(self._output))
        buffer[:n_bytes] = self._output[:n_bytes]
        self._output = self._output[n_bytes:]
        self._position += n_bytes
        return n_bytes

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._file.close()
