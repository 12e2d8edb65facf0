"""A model's GGUF file, or all parts of a split one: metadata with its arrays, and the values of its tensors.

Shape suffixes: O output rows, D input columns.

Tested in tests/slm/from_gguf/test_convert.py.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from slm.data.errors import UserError, not_utf8
from slm.from_gguf.stores import PART
from slm.llama.blocks.codec import dequantize, row_bytes
from slm.llama.gguf_check import GgufHeader, GgufTensor, read_arrays, read_header

_BYTES_AT_ONCE = 64 << 20
"""Most bytes of dequantized values at once."""
_OTHER_FILES = {
    "adapter": "a LoRA adapter: give the model that it belongs to",
    "imatrix": "an importance matrix: give a model's file",
    "mmproj": "a model's image projector: give the file of the language model beside it",
}
"""By ``general.type``: files that hold no language model."""


@dataclass(frozen=True, kw_only=True)
class Contents:
    """A file's contents; tensors are read when they are asked for."""

    path: Path
    """The file, or the first part."""
    parts: tuple[Path, ...]
    headers: tuple[GgufHeader, ...]
    arrays: dict[str, list[Any]]
    """The metadata's arrays, by key."""

    @property
    def metadata(self) -> dict[str, Any]:
        """Scalars and strings by key; of an array its length under ``KEY[]``."""
        return self.headers[0].metadata

    @property
    def arch(self) -> str:
        """llama.cpp's name of the architecture."""
        return str(self.metadata.get("general.architecture"))

    def value(self, key: str, default: Any = None) -> Any:
        """A value of the architecture's own: ``value("block_count")`` is ``llama.block_count``."""
        name = f"{self.arch}.{key}"
        return self.arrays.get(name, self.metadata.get(name, default))

    @cached_property
    def tensors(self) -> dict[str, tuple[int, GgufTensor]]:
        """By name: the part that holds it, and its entry."""
        return {each.name: (part, each) for part, header in enumerate(self.headers) for each in header.tensors}

    @property
    def n_weights(self) -> int:
        return sum(math.prod(each.shape) for _, each in self.tensors.values())

    @property
    def bits_per_weight(self) -> float:
        return 8 * sum(each.n_bytes for _, each in self.tensors.values()) / max(1, self.n_weights)

    def raw(self, name: str) -> np.ndarray:
        """A tensor's bytes as the file has them, uint8 [O, bytes of a row], in the file's own memory."""
        part, tensor = self.tensors[name]
        n_rows = math.prod(tensor.shape[1:])
        at = self.headers[part].data_offset + tensor.offset
        mapped = np.memmap(self.parts[part], np.uint8, "r", at, (tensor.n_bytes,))
        return mapped.reshape(n_rows, row_bytes(tensor.type, tensor.shape[0]))

    def rows(self, name: str) -> Iterator[np.ndarray]:
        """A tensor's values, f32 [O, D], as pieces of a few rows each."""
        _, tensor = self.tensors[name]
        blocks_OC, width = self.raw(name), tensor.shape[0]
        step = max(1, _BYTES_AT_ONCE // (4 * width))
        for at in range(0, len(blocks_OC), step):
            yield _values(tensor.type, blocks_OC[at : at + step], width)


def _values(kind: str, blocks_OC: np.ndarray, width: int) -> np.ndarray:
    """f32 [O, D]."""
    if kind == "f32":
        return np.ascontiguousarray(blocks_OC).view(np.float32)
    if kind == "f16":
        return np.ascontiguousarray(blocks_OC).view(np.float16).astype(np.float32)
    if kind == "bf16":
        halves = np.ascontiguousarray(blocks_OC).view(np.uint16).astype(np.uint32)
        return (halves << 16).view(np.float32)
    return dequantize(kind, blocks_OC, width)


def open_contents(path: Path) -> Contents:
    """Read the metadata of a file, or of all parts where it is a part of a split one.

    UserError for a damaged file, a missing part, and a file that holds no language model.
    """
    if fault := not_utf8(path):
        raise UserError(f"{fault}: rename it")
    parts = part_files(path)
    first, arrays = read_arrays(parts[0])
    headers = (first, *(read_header(each) for each in parts[1:]))
    kind, arch = first.metadata.get("general.type", "model"), first.metadata.get("general.architecture")
    kind = "mmproj" if arch == "clip" else kind
    if kind in _OTHER_FILES:
        raise UserError(f"{path} is {_OTHER_FILES[kind]}")
    return Contents(path=parts[0], parts=parts, headers=headers, arrays=arrays)


def part_files(path: Path) -> tuple[Path, ...]:
    """The file, or all parts of a split one in their order. UserError for a part that is missing."""
    found = PART.search(path.name)
    if found is None:
        return (path,)
    count, stem = int(found[2]), path.name[: found.start()]
    parts = tuple(path.with_name(f"{stem}-{n:05d}-of-{count:05d}.gguf") for n in range(1, count + 1))
    missing = [each.name for each in parts if not each.is_file()]
    if missing:
        raise UserError(
            f"{path} is a part of a split file, and {len(missing)} of {count} parts are missing ({missing[0]}): copy "
            "them into the same folder"
        )
    return parts
