"""A matrix that stays in its safetensors file; its rows are read and made f32 when they are asked for.

It is read rather than mapped: of a mapped file every page that was touched stays in the process's memory.

Shape suffixes: O output rows, I input columns.

Tested in tests/slm/model/held/test_stored_matrix.py.
"""

import json
from pathlib import Path

import numpy as np
import torch

from slm.data.errors import UserError
from slm.model.layers.held import ROWS

_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class StoredMatrix:
    """[O, I] values of ``dtype`` that begin at byte ``start`` of a file."""

    def __init__(self, path: Path, start: int, shape: tuple[int, int], dtype: torch.dtype) -> None:
        self.shape, self._path, self._start, self._dtype = shape, path, start, dtype

    def rows(self, some: slice | np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """f32 [rows, I]: those of a slice of step 1, or of these ids; in ``out`` where it is given."""
        numbers = range(*some.indices(self.shape[0])) if isinstance(some, slice) else some
        found = np.empty((len(numbers), self.shape[1]), np.float32) if out is None else out
        if isinstance(numbers, range):
            assert numbers.step == 1
            for at in range(0, len(numbers), ROWS):
                self._read(numbers.start + at, found[at : at + ROWS])
        else:
            for at, row in enumerate(numbers):
                self._read(int(row), found[at : at + 1])
        return found

    def _read(self, row: int, out: np.ndarray) -> None:
        """Rows from ``row`` on, as many as ``out`` has."""
        size = self._dtype.itemsize
        raw = np.fromfile(self._path, np.uint8, out.size * size, offset=self._start + row * self.shape[1] * size)
        if raw.size != out.size * size:
            raise UserError(f"{self._path} has become shorter while it was read: leave it as it is, and try again")
        torch.from_numpy(out).copy_(torch.from_numpy(raw).view(self._dtype).view(out.shape))


def stored_matrices(path: Path) -> dict[str, StoredMatrix]:
    """The matrices of floating-point numbers in a safetensors file that has been found to be whole, by name."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    found = {}
    for name, each in header.items():
        if name != "__metadata__" and len(each["shape"]) == 2 and each["dtype"] in _TYPES:
            rows, columns = each["shape"]
            start = 8 + size + each["data_offsets"][0]
            found[name] = StoredMatrix(path, start, (rows, columns), _TYPES[each["dtype"]])
    return found
