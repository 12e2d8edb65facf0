"""Reading a GGUF header without trusting it.

llama.cpp aborts the process on some damaged files. A header that claims an array of 2^63 elements makes naive
readers allocate or loop without end. So every count, length and offset is compared with the
file's own length here, in plain Python, before any native code opens the file.

Source: the format's description in ggml's ``docs/gguf.md``. Not promised: that the values make sense for a
model (llama.cpp checks those), nor big-endian files.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slm.data.errors import UserError, nearest
from slm.data.wrong_download import wrong_download

GGML_TYPES: dict[str, tuple[int, int, int]] = {
    "f32": (0, 1, 4),
    "f16": (1, 1, 2),
    "q4_0": (2, 32, 18),
    "q4_1": (3, 32, 20),
    "q5_0": (6, 32, 22),
    "q5_1": (7, 32, 24),
    "q8_0": (8, 32, 34),
    "q8_1": (9, 32, 36),
    "q2_k": (10, 256, 84),
    "q3_k": (11, 256, 110),
    "q4_k": (12, 256, 144),
    "q5_k": (13, 256, 176),
    "q6_k": (14, 256, 210),
    "q8_k": (15, 256, 292),
    "iq2_xxs": (16, 256, 66),
    "iq2_xs": (17, 256, 74),
    "iq3_xxs": (18, 256, 98),
    "iq1_s": (19, 256, 50),
    "iq4_nl": (20, 32, 18),
    "iq3_s": (21, 256, 110),
    "iq2_s": (22, 256, 82),
    "iq4_xs": (23, 256, 136),
    "i8": (24, 1, 1),
    "i16": (25, 1, 2),
    "i32": (26, 1, 4),
    "i64": (27, 1, 8),
    "f64": (28, 1, 8),
    "iq1_m": (29, 256, 56),
    "bf16": (30, 1, 2),
    "tq1_0": (34, 256, 54),
    "tq2_0": (35, 256, 66),
    "mxfp4": (39, 32, 17),
    "nvfp4": (40, 64, 36),
    "q1_0": (41, 128, 18),
    "q2_0": (42, 64, 18),
}
"""Lower-case ggml tensor type -> (id, elements per block, bytes per block)."""

SPLIT_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
"""What a part of a split model is called: its name, its number, and the number of parts."""
_WITHDRAWN = {
    4: "q4_2", 5: "q4_3", 31: "q4_0_4_4", 32: "q4_0_4_8", 33: "q4_0_8_8", 36: "iq4_nl_4_4", 37: "iq4_nl_4_8",
    38: "iq4_nl_8_8",
}  # fmt: skip
"""Types that llama.cpp had and has no more, by their number."""
_TYPE_BY_ID = {number: (name, block, size) for name, (number, block, size) in GGML_TYPES.items()}

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_TOKENS = "tokenizer.ggml.tokens"
_MAX_KEY = 65535
_MAX_DIMS = 4
_MAX_LAYERS = 512
_NO_WEIGHTS = ("i8", "i16", "i32", "i64", "f64")
"""Types that no operation on weights accepts."""


def ggml_type_id(name: str) -> int:
    """llama.cpp's number of a tensor type, by its name in either case. UserError where there is none of that name."""
    key = name.lower()
    if key not in GGML_TYPES:
        raise UserError(f"unknown tensor type {name!r}; {nearest(key, list(GGML_TYPES))}".rstrip("; "))
    return GGML_TYPES[key][0]


@dataclass(frozen=True, kw_only=True)
class GgufTensor:
    """One tensor's entry in the header."""

    name: str
    shape: tuple[int, ...]
    """ggml order: the row length (innermost dimension) first."""
    type: str
    """Lower-case ggml type, a key of ``GGML_TYPES``."""
    offset: int
    """Bytes from the start of the data section."""
    n_bytes: int


@dataclass(frozen=True, kw_only=True)
class GgufHeader:
    """A checked header."""

    version: int
    metadata: dict[str, Any]
    """Scalars and strings as they are; an array as its length (``int``) under ``KEY[]``."""
    tensors: list[GgufTensor]
    data_offset: int
    """Bytes from the file's start to its data section."""
    size_bytes: int
    """The file's length."""

    @property
    def n_parts(self) -> int:
        """How many files the model was split into; 1: it was not."""
        count = self.metadata.get("split.count", 1)
        return count if isinstance(count, int) and count > 1 else 1

    @property
    def bits_per_weight(self) -> float:
        """Bits per weight of all tensors together."""
        return 8 * sum(tensor.n_bytes for tensor in self.tensors) / sum(math.prod(t.shape) for t in self.tensors)

    @property
    def decode_bytes(self) -> int:
        """Bytes of weights that decoding a token reads: all but an embedding that does not predict as well."""
        tied = not any(tensor.name == "output.weight" for tensor in self.tensors)
        return sum(tensor.n_bytes for tensor in self.tensors if tied or tensor.name != "token_embd.weight")


class _DamagedError(Exception):
    pass


class _OtherFileError(Exception):
    """It is whole, but no file that can be used here."""


class _Reader:
    def __init__(self, view: mmap.mmap | bytes, size: int) -> None:
        self.view, self.size, self.at = view, size, 0

    def need(self, n_bytes: int, what: str) -> None:
        if n_bytes > self.size - self.at:
            raise _DamagedError(f"{what} at byte {self.at} needs {n_bytes} bytes, {self.size - self.at} are left")

    def scalar(self, code: str, what: str) -> Any:
        n_bytes = struct.calcsize("<" + code)
        self.need(n_bytes, what)
        (value,) = struct.unpack_from("<" + code, self.view, self.at)
        self.at += n_bytes
        return value

    def string(self, what: str, limit: int | None = None) -> str:
        length = self.scalar("Q", what)
        if limit is not None and length > limit:
            raise _DamagedError(f"{what} at byte {self.at - 8} claims {length} bytes")
        self.need(length, what)
        raw = bytes(self.view[self.at : self.at + length])
        self.at += length
        return raw.decode("utf-8", errors="replace")

    def value(self, kind: int, key: str) -> Any:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind], f"the value of {key!r}")
        if kind == _STRING:
            return self.string(f"the value of {key!r}")
        raise _DamagedError(f"{key!r} has the unknown value type {kind}")

    def distinct_strings(self, key: str, count: int) -> None:
        """Refuses an array that holds the same string twice; empty ones do not count."""
        unpack, at, seen = struct.Struct("<Q").unpack_from, self.at, set()
        for i in range(count):
            (length,) = unpack(self.view, at)
            raw = self.view[at + 8 : at + 8 + length]
            at += 8 + length
            if raw and raw in seen:
                raise _DamagedError(f"{key!r} holds {raw[:40].decode('utf-8', 'replace')!r} twice, again at {i}")
            seen.add(raw)

    def array(self, key: str) -> list[Any]:
        """The elements of an array, which ``skip_array`` has checked."""
        kind, count = self.scalar("i", key), self.scalar("Q", key)
        if kind == _STRING:
            return [self.string(key) for _ in range(count)]
        code = f"<{count}{_SCALARS[kind]}"
        values = struct.unpack_from(code, self.view, self.at)
        self.at += struct.calcsize(code)
        return list(values)

    def skip_array(self, key: str) -> int:
        kind = self.scalar("i", f"the element type of {key!r}")
        count = self.scalar("Q", f"the length of {key!r}")
        if kind in _SCALARS:
            n_bytes = count * struct.calcsize("<" + _SCALARS[kind])
            self.need(n_bytes, f"array {key!r} of {count} elements")
            self.at += n_bytes
        elif kind == _STRING:
            self.need(count * 8, f"array {key!r} of {count} strings")
            unpack, view, at, size = struct.Struct("<Q").unpack_from, self.view, self.at, self.size
            for _ in range(count):
                if at + 8 > size:
                    raise _DamagedError(f"array {key!r} runs past the end of the file")
                at += 8 + unpack(view, at)[0]
                if at > size:
                    raise _DamagedError(f"array {key!r} runs past the end of the file")
            if key == _TOKENS:
                self.distinct_strings(key, count)
            self.at = at
        else:
            raise _DamagedError(f"array {key!r} has the unsupported element type {kind}")
        return count


def read_header(path: str | Path) -> GgufHeader:
    """Reads and checks the header of a GGUF file.

    Raises ``UserError`` (one line) when the file is missing, is no GGUF, or claims more than its length holds.
    """
    return _read(path)[0]


def read_arrays(path: str | Path, prefix: str = "") -> tuple[GgufHeader, dict[str, list[Any]]]:
    """The checked header, and the metadata's arrays with keys that begin with ``prefix``, element by element."""
    return _read(path, prefix)


def _read(path: str | Path, prefix: str | None = None) -> tuple[GgufHeader, dict[str, list[Any]]]:
    path = Path(path)
    if path.is_dir():
        raise UserError(f"{path} is a directory; name a .gguf file")
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            if (other := _other_kind(file.read(512))) is not None:
                raise _OtherFileError(other)
            if size < 24:
                raise UserError(f"{path} is not a GGUF file: it has {size} bytes; export or download it again")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
                return _parse(_Reader(view, size), prefix)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; check the path") from None
    except PermissionError:
        raise UserError(
            f"{path} cannot be read: permission denied; change its rights (chmod) or name another file"
        ) from None
    except _OtherFileError as reason:
        raise UserError(f"{path} {reason}") from None
    except _DamagedError as reason:
        raise UserError(f"{path} is damaged: {reason}; export or download it again") from None


def parts(path: Path, header: GgufHeader) -> list[Path]:
    """The files of a model from its first, ``path``, with that file's ``header``: one, or as many as it was split into.

    ``UserError`` where it is not the first, and where another is not next to it.
    """
    if header.n_parts == 1:
        return [path]
    name = SPLIT_NAME.fullmatch(path.name)
    if name is None:
        raise UserError(
            f"{path} is a part of a model of {header.n_parts} files, which must be called NAME-00001-of-"
            f"{header.n_parts:05}.gguf: give them back their names"
        )
    files = [path.with_name(f"{name[1]}-{i:05}-of-{name[3]}.gguf") for i in range(1, header.n_parts + 1)]
    if path != files[0]:
        raise UserError(
            f"{path} is part {int(name[2])} of {header.n_parts} of a model: name the first, {files[0].name}"
        )
    missing = [each for each in files if not each.is_file()]
    if missing:
        raise UserError(
            f"{path} is part 1 of {header.n_parts} of a model, and {missing[0].name} is not next to it; download it"
        )
    return files


def _other_kind(start: bytes) -> str | None:
    """What a file is that begins like this, and what to do; None for a GGUF file, or an unknown one."""
    if found := wrong_download(start):
        return found
    if start.startswith(b"PK\x03\x04"):
        return "is a zip file or a PyTorch checkpoint, not a GGUF file"
    if start[:4] in (b"lmgg", b"fmgg", b"tjgg", b"algg"):
        return "has a format from before GGUF (GGML), which llama.cpp reads no more: convert the original model again"
    if start[8:10] == b'{"' and start[:4] != b"GGUF":
        return "is a safetensors file, not a GGUF file: export the folder that it stands in"
    return None


def _parse(reader: _Reader, prefix: str | None = None) -> tuple[GgufHeader, dict[str, list[Any]]]:
    """``prefix``: the elements of arrays with such keys are wanted."""
    magic = bytes(reader.view[:4])
    if magic != b"GGUF":
        raise _DamagedError(f"it starts with {magic!r} rather than b'GGUF'")
    reader.at = 4
    version = reader.scalar("I", "the version")
    if version not in (2, 3):
        raise _DamagedError(f"GGUF version {version} is not 2 or 3")
    n_tensors = reader.scalar("Q", "the tensor count")
    n_kv = reader.scalar("Q", "the metadata count")
    # The smallest entries: an empty key with a 1-byte value; an empty name with 1 dimension.
    reader.need(n_kv * 13 + n_tensors * 32, f"a header of {n_kv} keys and {n_tensors} tensors")
    metadata: dict[str, Any] = {}
    arrays: dict[str, list[Any]] = {}
    for _ in range(n_kv):
        key = reader.string("a metadata key", _MAX_KEY)
        if key in metadata or key + "[]" in metadata:
            raise _DamagedError(f"the key {key!r} appears twice")
        kind = reader.scalar("i", f"the type of {key!r}")
        if kind == _ARRAY:
            start = reader.at
            metadata[key + "[]"] = reader.skip_array(key)
            if prefix is not None and key.startswith(prefix):
                reader.at = start
                arrays[key] = reader.array(key)
        else:
            metadata[key] = reader.value(kind, key)
    _check_values(metadata)
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1) or alignment > 1 << 20:
        raise _DamagedError(f"general.alignment is {alignment!r}, not a power of two")
    tensors = [_tensor(reader) for _ in range(n_tensors)]
    data_offset = math.ceil(reader.at / alignment) * alignment
    names: set[str] = set()
    for tensor in tensors:
        if tensor.name in names:
            raise _DamagedError(f"the tensor {tensor.name!r} appears twice")
        names.add(tensor.name)
        if tensor.offset % alignment:
            raise _DamagedError(f"the tensor {tensor.name!r} is not aligned to {alignment} bytes")
        if data_offset + tensor.offset + tensor.n_bytes > reader.size:
            raise _DamagedError(
                f"the tensor {tensor.name!r} ends at byte {data_offset + tensor.offset + tensor.n_bytes}, "
                f"the file has {reader.size}"
            )
    header = GgufHeader(
        version=version, metadata=metadata, tensors=tensors, data_offset=data_offset, size_bytes=reader.size
    )
    return header, arrays


def _check_values(metadata: dict[str, Any]) -> None:
    """Refuses the values at which llama.cpp aborts instead of reporting an error."""
    for key, value in metadata.items():
        if key.endswith(".block_count") and value not in range(1, _MAX_LAYERS + 1):
            raise _DamagedError(f"{key} is {value!r}, not a number of layers from 1 to {_MAX_LAYERS}")
        is_epsilon = key.endswith(("norm_rms_epsilon", "norm_epsilon"))
        if is_epsilon and (not isinstance(value, float) or not 0 <= value < 1):
            raise _DamagedError(f"{key} is {value!r}, not a number from 0 to 1")


def _tensor(reader: _Reader) -> GgufTensor:
    name = reader.string("a tensor name", 63)
    n_dims = reader.scalar("I", f"the shape of {name!r}")
    if not 1 <= n_dims <= _MAX_DIMS:
        raise _DamagedError(f"the tensor {name!r} has {n_dims} dimensions")
    shape = tuple(reader.scalar("q", f"the shape of {name!r}") for _ in range(n_dims))
    if min(shape) <= 0:
        raise _DamagedError(f"the tensor {name!r} has the shape {shape}")
    kind = reader.scalar("i", f"the type of {name!r}")
    if kind in _WITHDRAWN:
        raise _OtherFileError(
            f"holds tensors of the type {_WITHDRAWN[kind]}, which llama.cpp has withdrawn: take the file of another "
            "type (q4_0 is rearranged for the processor while it is loaded)"
        )
    if kind not in _TYPE_BY_ID:
        raise _DamagedError(f"the tensor {name!r} has the unknown type {kind}")
    type_name, block, block_bytes = _TYPE_BY_ID[kind]
    if type_name in _NO_WEIGHTS and name.endswith((".weight", ".bias")):
        raise _DamagedError(f"the tensor {name!r} has the type {type_name}, which no weights have")
    if shape[0] % block:
        raise _DamagedError(
            f"the tensor {name!r} has rows of {shape[0]}, not a multiple of {block} as {type_name} needs"
        )
    offset = reader.scalar("Q", f"the offset of {name!r}")
    n_bytes = math.prod(shape) // block * block_bytes
    return GgufTensor(name=name, shape=shape, type=type_name, offset=offset, n_bytes=n_bytes)
