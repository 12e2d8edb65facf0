"""A matrix in the blocks of a ggml type, and back: llama.cpp's own rounding, called row by row.

What ``quantize`` (slm/llama/quantize.py) writes for a matrix is what ``quantize_rows`` gives for its rows: every type
rounds each row by itself, so any rows of a matrix may be rounded alone.

Shape suffixes: O rows, D columns.
"""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
from llama_cpp._ggml import libggml

from data.errors import UserError
from slm.llama.gguf_check import GGML_TYPES

NEED_IMPORTANCE = ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs")
"""Types that llama.cpp does not round to without the importance of the columns (``tensor_requires_imatrix``)."""
_ROWS_AT_ONCE = 64
"""Of one thread."""


def fits(kind: str, width: int) -> bool:
    """Whether rows of ``width`` numbers are whole blocks of the type."""
    return width % GGML_TYPES[kind][1] == 0


def row_bytes(kind: str, width: int) -> int:
    """Bytes of a row of ``width`` numbers, which must fit."""
    _, block, size = GGML_TYPES[kind]
    assert width % block == 0, f"rows of {width} are not blocks of {kind}"
    return width // block * size


def quantize_rows(
    rows_OD: np.ndarray, kind: str, importance_D: np.ndarray | None = None, n_threads: int = 1
) -> np.ndarray:
    """uint8 [O, bytes of a row]: float32 rows in the blocks of the ggml type ``kind``.

    ``importance_D``: the mean square of what each column is multiplied by. UserError where the rows do not fit the
    type, or it needs an importance that is not given.
    """
    if kind not in GGML_TYPES or _to_float(kind) is None:
        raise UserError(f"{kind} is not a type that weights are rounded to")
    n_rows, width = rows_OD.shape
    if not fits(kind, width):
        raise UserError(f"rows of {width} are not multiples of {GGML_TYPES[kind][1]}, which {kind} needs")
    if importance_D is None and kind in NEED_IMPORTANCE:
        raise UserError(f"{kind} needs the importance of the columns")
    rows_OD = np.ascontiguousarray(rows_OD, dtype=np.float32)
    if kind == "f16":
        return rows_OD.astype(np.float16).view(np.uint8)
    packed = np.empty((n_rows, row_bytes(kind, width)), dtype=np.uint8)
    weights = None if importance_D is None else np.ascontiguousarray(importance_D, dtype=np.float32)
    assert weights is None or weights.shape == (width,)
    number = GGML_TYPES[kind][0]
    chunk = _library().ggml_quantize_chunk

    def run(start: int) -> None:
        part_OD = rows_OD[start : start + _ROWS_AT_ONCE]
        done = chunk(
            number,
            part_OD.ctypes.data,
            packed[start:].ctypes.data,
            0,
            len(part_OD),
            width,
            None if weights is None else weights.ctypes.data,
        )
        assert done == len(part_OD) * packed.shape[1]

    _in_parts(run, n_rows, n_threads)
    return packed


def dequantize_rows(packed: np.ndarray, kind: str, width: int, n_threads: int = 1) -> np.ndarray:
    """float32 [O, width]: the numbers that the blocks stand for."""
    if kind == "f16":
        return packed.view(np.float16).astype(np.float32)
    values_OD = np.empty((len(packed), width), dtype=np.float32)
    packed = np.ascontiguousarray(packed)
    unpack = _to_float(kind)
    assert unpack is not None, f"{kind} has no blocks"

    def run(start: int) -> None:
        part_OD = values_OD[start : start + _ROWS_AT_ONCE]
        unpack(packed[start:].ctypes.data, part_OD.ctypes.data, part_OD.size)

    _in_parts(run, len(packed), n_threads)
    return values_OD


def rounded(rows_OD: np.ndarray, kind: str, importance_D: np.ndarray | None = None, n_threads: int = 1) -> np.ndarray:
    """float32 [O, D]: what ``rows_OD`` become when they are stored as ``kind``."""
    if kind == "f32":
        return rows_OD
    packed = quantize_rows(rows_OD, kind, importance_D, n_threads)
    return dequantize_rows(packed, kind, rows_OD.shape[1], n_threads)


def _in_parts(run: object, n_rows: int, n_threads: int) -> None:
    assert callable(run)
    starts = range(0, n_rows, _ROWS_AT_ONCE)
    if n_threads < 2 or len(starts) < 2:
        for start in starts:
            run(start)
        return
    with ThreadPoolExecutor(n_threads) as pool:  # ctypes lets other threads run meanwhile
        list(pool.map(run, starts))


@cache
def _library() -> ctypes.CDLL:
    chunk = libggml.ggml_quantize_chunk
    chunk.argtypes = [
        *(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64),
        ctypes.c_void_p,
    ]
    chunk.restype = ctypes.c_size_t
    return libggml


@cache
def _to_float(kind: str) -> ctypes._NamedFuncPointer | None:
    """llama.cpp's function that unpacks blocks of the type; None where it has none."""
    if kind == "f16":
        return _library().ggml_quantize_chunk  # numpy converts it; the function only stands for "there is one"
    name = f"dequantize_row_{kind.removesuffix('_k')}{'_K' if kind.endswith('_k') else ''}"
    function = getattr(libggml, name, None)
    if function is not None:
        function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64], None
    return function
