"""The tensors of a checkpoint as they were at one moment, written while training goes on to change them.

Between two updates nothing changes weights and moments, so a snapshot begins as references: a writer reads them
a part at a time, and ``Snapshot.detach``, called right before the next update, copies what has not been read by
then. Where writing is faster than a step nothing is copied at all.
"""

import hashlib
import json
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

PIECE_BYTES = 4 << 20
"""How much a writer reads at a time; an update waits at most for one piece."""
SMALL_BYTES = 64 << 10
"""Tensors up to this size are copied at once."""
# https://github.com/huggingface/safetensors#format
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


Rows = Callable[[slice], np.ndarray]


@dataclass(frozen=True)
class Computed:
    """A tensor that is computed when it is written, of what does not change until then."""

    shape: tuple[int, ...]
    rows: Rows
    """Some of its rows, f32."""


class _ComputedEntry:
    """One of them: nothing of it is shared with training."""

    live, dtype = False, torch.float32

    def __init__(self, name: str, computed: Computed) -> None:
        self.name, self.shape, self._computed = name, list(computed.shape), computed
        self.nbytes, self.read = 4 * math.prod(computed.shape), 0

    def copy_rest(self) -> int:
        return 0

    def drop(self) -> None:
        self.read = self.nbytes

    def pieces(self) -> Iterator[memoryview]:
        row_bytes = max(1, self.nbytes // max(1, self.shape[0]))
        step = max(1, PIECE_BYTES // row_bytes)
        for start in range(0, self.shape[0], step):
            piece = np.ascontiguousarray(self._computed.rows(slice(start, start + step)), dtype=np.float32)
            self.read += piece.nbytes
            yield piece.reshape(-1).view(np.uint8).data


class _Entry:
    """One tensor: its bytes from ``base`` on, shared with training while ``live``."""

    def __init__(self, name: str, tensor: Tensor) -> None:
        tensor = tensor.detach()
        self.name, self.shape, self.dtype = name, list(tensor.shape), tensor.dtype
        self.nbytes = tensor.nbytes
        self.live = self.nbytes > SMALL_BYTES and tensor.is_contiguous()
        whole = tensor if self.live else tensor.clone(memory_format=torch.contiguous_format)
        self.bytes: Tensor = whole.reshape(-1).view(torch.uint8)
        self.base, self.read = 0, 0
        self._tensor, self._version = tensor, tensor._version

    def check_unchanged(self) -> None:
        if self._tensor._version != self._version:
            raise RuntimeError(f"{self.name} was changed before its snapshot was detached")

    def copy_rest(self) -> int:
        """Make what has not been read independent of training. Returns the bytes copied."""
        self.check_unchanged()
        self.bytes, self.base, self.live = self.bytes[self.read - self.base :].clone(), self.read, False
        return self.bytes.numel()

    def drop(self) -> None:
        self.live, self.bytes, self.read = False, torch.empty(0, dtype=torch.uint8), self.nbytes


class Snapshot:
    """Tensors by file and name. One thread writes them; another calls ``detach`` before it changes them."""

    def __init__(
        self, files: Mapping[str, Mapping[str, Tensor | Computed]], metadata: dict[str, dict[str, str]] | None = None
    ) -> None:
        """``metadata``: further entries of a file's header, by the file's name."""
        self._metadata = metadata or {}
        self._files = {file: [_entry(name, t) for name, t in tensors.items()] for file, tensors in files.items()}
        for entries in self._files.values():
            entries.sort(key=lambda entry: (-entry.dtype.itemsize, entry.name))  # keeps every tensor aligned
        self.files = tuple(files)
        """The names of the files, relative to the checkpoint."""
        self._lock = threading.Lock()
        self._all_read = threading.Event()
        self.nbytes = sum(entry.nbytes for entry in self._entries())

    def _entries(self) -> "list[_Entry | _ComputedEntry]":
        return [entry for entries in self._files.values() for entry in entries]

    def unread(self) -> int:
        """Bytes still shared with training: what ``detach`` would copy."""
        with self._lock:
            return sum(entry.nbytes - entry.read for entry in self._entries() if entry.live)

    def detach(self) -> int:
        """Let training change its tensors: copy what has not been read yet. Returns the bytes copied."""
        with self._lock:
            return sum(entry.copy_rest() for entry in self._entries() if entry.live)

    def wait_read(self, timeout: float | None = None) -> bool:
        """Wait until everything has been read or given up, which needs no copy. False where ``timeout`` (s) ran out."""
        return self._all_read.wait(timeout)

    def release(self) -> None:
        """Let go of every tensor, and end every wait for their reading."""
        with self._lock:
            for entry in self._entries():
                entry.drop()
        self._all_read.set()

    def write_file(self, file: str, path: Path) -> str:
        """Write one file of the snapshot in the safetensors format, flushed to the disk. Returns its SHA-256.

        The library's own writer wants every tensor at once; this one holds a piece, and hashes what it writes.
        """
        entries = self._files[file]
        header: dict[str, object] = {"__metadata__": {"format": "pt"} | self._metadata.get(file, {})}
        offset = 0
        for entry in entries:
            span = [offset, offset := offset + entry.nbytes]
            header[entry.name] = {"dtype": DTYPES[entry.dtype], "shape": entry.shape, "data_offsets": span}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        digest = hashlib.sha256()
        with path.open("wb", buffering=0) as out:
            _write(out, len(text).to_bytes(8, "little") + text, digest)
            for piece in self._pieces(entries):
                _write(out, piece, digest)
            os.fsync(out.fileno())
        return digest.hexdigest()

    def _note_end(self) -> None:
        if all(entry.read == entry.nbytes for entry in self._entries()):
            self._all_read.set()

    def _pieces(self, entries: "list[_Entry | _ComputedEntry]") -> Iterator[memoryview]:
        staging = np.empty(PIECE_BYTES, dtype=np.uint8)
        for entry in entries:
            if isinstance(entry, _ComputedEntry):
                yield from entry.pieces()
                self._note_end()
                continue
            while entry.read < entry.nbytes:
                with self._lock:
                    start = entry.read - entry.base
                    # NumPy: torch's copy would start another team of workers for this thread.
                    piece = entry.bytes[start : start + PIECE_BYTES].numpy()
                    np.copyto(staging[: len(piece)], piece)
                    if entry.live:
                        entry.check_unchanged()
                    entry.read += len(piece)
                    if entry.read == entry.nbytes:
                        entry.drop()
                        self._note_end()
                yield staging.data[: len(piece)]


def _entry(name: str, tensor: Tensor | Computed) -> _Entry | _ComputedEntry:
    return _ComputedEntry(name, tensor) if isinstance(tensor, Computed) else _Entry(name, tensor)


def _write(out: FileIO, piece: memoryview | bytes, digest: "hashlib._Hash") -> None:
    digest.update(piece)
    view = memoryview(piece)
    while len(view):  # an unbuffered file may take less than it was given
        view = view[out.write(view) :]
