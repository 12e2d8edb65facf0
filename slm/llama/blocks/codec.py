"""A matrix as a quantized type's blocks, and back, by ggml's own functions: those that ``llama_model_quantize`` calls.

Shape suffixes: O output rows, D input columns, C bytes of a row's blocks.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import llama_cpp.llama_cpp as C
import numpy as np

import slm.llama.log  # noqa: F401 - starts the backend
from slm.llama.gguf_check import GGML_TYPES

PIECE = 1 << 15
"""Weights that a thread takes at a time: with their blocks they fit a core's cache."""
TERNARY_THRESHOLD = 0.7
"""Share of a block's mean magnitude below which weights of a ternary type become 0."""
TERNARY = ("tq1_0", "tq2_0")


class _Traits(ctypes.Structure):
    """ggml.h's ``ggml_type_traits``."""

    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("blck_size", ctypes.c_int64),
        ("blck_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
        ("from_float_ref", ctypes.c_void_p),
    )


quantize_chunk = C._lib.ggml_quantize_chunk
"""(type, float32 rows, blocks, first weight, rows, weights in a row, importance or None) -> bytes written."""
quantize_chunk.restype = ctypes.c_size_t
quantize_chunk.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *(ctypes.c_int64,) * 3, ctypes.c_void_p)
_traits = C._lib.ggml_get_type_traits
_traits.restype = ctypes.POINTER(_Traits)
_traits.argtypes = (ctypes.c_int,)


def can_hold_weights(kind: str) -> bool:
    """Whether ggml rounds weights to the type ``kind`` and unpacks it again: a quantized type or f16."""
    if kind not in GGML_TYPES:
        return False
    traits = _traits(GGML_TYPES[kind][0]).contents
    return bool(traits.to_float) and (traits.is_quantized or kind == "f16")


def row_bytes(kind: str, width: int) -> int:
    """Bytes of a row of ``width`` weights stored as ``kind``, a key of ``GGML_TYPES``."""
    _, block, size = GGML_TYPES[kind]
    if width % block:
        raise ValueError(f"rows of {width} weights cannot be stored as {kind}")
    return width // block * size


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """A matrix, and where its blocks and the values that they stand for go. All arrays are contiguous."""

    kind: str
    """A key of ``GGML_TYPES``."""
    weights: np.ndarray
    """float32 [O, D]: what is quantized."""
    blocks: np.ndarray
    """uint8 [O, C]."""
    rounded: np.ndarray
    """float32 [O, D]."""
    rows: slice
    """The rows to quantize; the others stay as they are."""
    importance: np.ndarray | None = None
    """float32 [D]: what the square of an error counts in each column; None: the same in all."""


def quantize(matrices: Iterable[Matrix], pool: ThreadPoolExecutor) -> None:
    """Fill blocks and rounded values. The same weights give the same bytes, whatever the number of threads.

    A ternary type's scale is the one of Li, Zhang and Liu 2016 ("Ternary Weight Networks"): ggml's own, a block's
    largest magnitude, sets four of five weights to 0. ggml finds the same blocks in the values that result.
    """
    for _ in pool.map(_quantize_rows, *zip(*_pieces(matrices), strict=True)):
        pass


def dequantize(kind: str, blocks_OC: np.ndarray, width: int) -> np.ndarray:
    """The values that blocks stand for, float32 [O, D]."""
    rounded_OD = np.empty((len(blocks_OC), width), np.float32)
    blocks_OC = np.ascontiguousarray(blocks_OC)
    if blocks_OC.shape[1:] != (row_bytes(kind, width),):
        raise ValueError(f"{blocks_OC.shape} are no blocks of {width} weights")
    dequantize_into(kind, blocks_OC, rounded_OD)
    return rounded_OD


def _pieces(matrices: Iterable[Matrix]) -> Iterator[tuple[Matrix, int, int]]:
    """(matrix, first row, last row + 1)."""
    for each in matrices:
        (n_rows, width), step = each.weights.shape, max(1, PIECE // each.weights.shape[1])
        _check("weights", each.weights, np.float32, (n_rows, width))
        _check("blocks", each.blocks, np.uint8, (n_rows, row_bytes(each.kind, width)))
        _check("rounded", each.rounded, np.float32, (n_rows, width))
        if each.importance is not None:
            _check("importance", each.importance, np.float32, (width,))
        start, stop, _ = each.rows.indices(n_rows)
        for first in range(start, stop, step):
            yield each, first, min(first + step, stop)


def _check(name: str, array: np.ndarray, dtype: type, shape: tuple[int, ...]) -> None:
    """ValueError for an array if native code would read or write otherwise than it lies."""
    if array.dtype != dtype or array.shape != shape or not array.flags.c_contiguous:
        contiguous = "" if array.flags.c_contiguous else ", not contiguous"
        raise ValueError(
            f"{name} must be {np.dtype(dtype)} {list(shape)}, not {array.dtype} {list(array.shape)}{contiguous}"
        )


def _quantize_rows(matrix: Matrix, first: int, last: int) -> None:
    weights_OD, blocks_OC = matrix.weights[first:last], matrix.blocks[first:last]
    if matrix.kind in TERNARY:
        weights_OD = ternary(weights_OD)
    number = GGML_TYPES[matrix.kind][0]
    importance = None if matrix.importance is None else matrix.importance.ctypes.data
    quantize_chunk(number, weights_OD.ctypes.data, blocks_OC.ctypes.data, 0, *weights_OD.shape, importance)
    dequantize_into(matrix.kind, blocks_OC, matrix.rounded[first:last])


def dequantize_into(kind: str, blocks_OC: np.ndarray, out_OD: np.ndarray) -> None:
    """Write the values of the blocks into ``out_OD``; both are contiguous."""
    if kind == "f32":
        out_OD[:] = blocks_OC.view(np.float32)
        return
    _traits(GGML_TYPES[kind][0]).contents.to_float(blocks_OC.ctypes.data, out_OD.ctypes.data, out_OD.size)


def ternary(weights_OD: np.ndarray) -> np.ndarray:
    """Each block of 256 weights as -d, 0 and d, where d is a number that f16 holds."""
    w = weights_OD.reshape(-1, 256)
    size = np.abs(w)
    kept = size > TERNARY_THRESHOLD * size.mean(axis=1, keepdims=True)
    scale = (size * kept).sum(axis=1, keepdims=True) / np.maximum(kept.sum(axis=1, keepdims=True), 1)
    scale = scale.astype(np.float16).astype(np.float32)
    return (np.sign(w) * kept * scale).astype(np.float32).reshape(weights_OD.shape)
