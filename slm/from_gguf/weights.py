"""A GGUF file's tensors as a checkpoint's ``model.safetensors``, a few rows at a time.

What the file holds as f16 or bf16 stays so; a quantized type's values need f32. The ``llama`` architecture's queries
and keys get Hugging Face's order of rows, Gemma's norms their stored weights.

Tested in tests/slm/from_gguf/test_convert.py.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from slm.data.errors import UserError, nearest
from slm.from_gguf.contents import Contents
from slm.llama.blocks.names import LONG_ROPE, gguf_name
from slm.llama.gguf_check import GgufTensor
from slm.model.config import ModelConfig
from slm.model.transformer import shapes

_LEFT_OUT = ("rope_freqs.weight", *LONG_ROPE.values())
"""Tensors that the configuration says."""
_KEPT = {"f16": "F16", "bf16": "BF16"}
"""Types that safetensors have, too."""


def write_weights(contents: Contents, shape: ModelConfig, path: Path) -> None:
    """Write every tensor of the model to ``path``. UserError names one that is missing, unknown or misshapen."""
    plan = _plan(contents, shape)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, size, tensor in plan:
        kind, n_bytes = _stored(tensor)
        end = at + n_bytes * math.prod(size)
        header[name] = {"dtype": kind, "shape": list(size), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, _, tensor in plan:
            for piece in _pieces(contents, shape, name, tensor):
                file.write(piece.tobytes())


def _plan(contents: Contents, shape: ModelConfig) -> list[tuple[str, tuple[int, ...], GgufTensor]]:
    """(Hugging Face name, its shape, the file's tensor), widest values first: so every tensor is aligned."""
    wanted = {gguf_name(name, shape.arch): (name, size) for name, size in shapes(shape).items()}
    found = contents.tensors
    for name, (hf_name, size) in wanted.items():
        if name not in found:
            raise UserError(f"{contents.path.name} lacks the tensor {name} ({hf_name}): download it again")
        has = tuple(reversed(found[name][1].shape))
        if math.prod(has) != math.prod(size) or has[0] != size[0]:
            raise UserError(
                f"{contents.path.name}: the tensor {name} is {list(has)}, and the metadata say {list(size)}: the file "
                "is damaged"
            )
    tied = {"output.weight"} if shape.tie_embeddings else set()
    unknown = sorted(set(found) - set(wanted) - {*_LEFT_OUT} - tied)
    if unknown:
        hint = nearest(unknown[0], wanted, n=1)
        raise UserError(
            f"{contents.path.name} holds {len(unknown)} tensors that a {shape.arch} model does not have here, such as "
            f"{unknown[0]}{f' ({hint})' if hint else ''}: this variant is not supported"
        )
    plan = [(hf_name, size, found[name][1]) for name, (hf_name, size) in wanted.items()]
    return sorted(plan, key=lambda each: -_stored(each[2])[1])


def _stored(tensor: GgufTensor) -> tuple[str, int]:
    """The safetensors type of a tensor, and the bytes of a value."""
    return (_KEPT[tensor.type], 2) if tensor.type in _KEPT else ("F32", 4)


def _pieces(contents: Contents, shape: ModelConfig, name: str, tensor: GgufTensor) -> Iterator[np.ndarray]:
    """The tensor's values in order, some rows at a time, in the type that is written."""
    heads = {"q_proj": shape.n_heads, "k_proj": shape.n_kv_heads}.get(name.split(".")[-2])
    if heads is not None and shape.traits.interleaved_heads:
        yield _in_type(in_halves(np.concatenate(list(contents.rows(tensor.name))), heads), tensor.type)
        return
    offset = np.float32(shape.traits.norm_offset if name.endswith("norm.weight") else 0)
    for rows_OD in contents.rows(tensor.name):
        yield _in_type(rows_OD - offset if offset else rows_OD, tensor.type)


def in_halves(weight_OD: np.ndarray, n_heads: int) -> np.ndarray:
    """Rows of each head from pairs (0, E/2, 1, E/2 + 1, ...) to halves (0 .. E/2, E/2 .. E): the inverse of what an
    export of a ``llama`` does."""
    n_rows, n_columns = weight_OD.shape
    pairs = weight_OD.reshape(n_heads, n_rows // n_heads // 2, 2, n_columns)
    return pairs.swapaxes(1, 2).reshape(n_rows, n_columns)


def _in_type(values: np.ndarray, kind: str) -> np.ndarray:
    if kind == "f16":
        return values.astype(np.float16)
    if kind == "bf16":  # the values are bf16's: their lower halves are zero
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values
