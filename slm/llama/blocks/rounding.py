"""A matrix in the blocks of a ggml type, and back: llama.cpp's own rounding, called row by row.

What ``quantize`` (slm/llama/quantize.py) writes for a matrix is what ``quantize_rows`` gives for its rows: every type
rounds each row by itself, so any rows of a matrix may be rounded alone.

Shape suffixes: O rows, D columns.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from slm.data.errors import UserError
from slm.llama.blocks.codec import can_hold_weights, dequantize_into, quantize_chunk, row_bytes
from slm.llama.gguf_check import GGML_TYPES

NEED_IMPORTANCE = ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs")
"""Types that llama.cpp does not round to without the importance of the columns (``tensor_requires_imatrix``)."""
_ROWS_AT_ONCE = 64
"""Rows per thread at once."""


def fits(kind: str, width: int) -> bool:
    """Whether rows of ``width`` numbers are whole blocks of the type."""
    return width % GGML_TYPES[kind][1] == 0


def quantize_rows(
    rows_OD: np.ndarray, kind: str, importance_D: np.ndarray | None = None, n_threads: int = 1
) -> np.ndarray:
    """uint8 [O, bytes of a row]: float32 rows in the blocks of the ggml type ``kind``.

    ``importance_D``: the mean square of what each column is multiplied by. UserError where the rows do not fit the
    type, or it needs an importance that is not given.
    """
    if not can_hold_weights(kind):
        raise UserError(f"{kind} is not a type that weights are rounded to")
    n_rows, width = rows_OD.shape
    if not fits(kind, width):
        raise UserError(f"rows of {width} are not multiples of {GGML_TYPES[kind][1]}, which {kind} needs")
    if importance_D is None and kind in NEED_IMPORTANCE:
        raise UserError(f"{kind} needs the importance of the columns")
    rows_OD = np.ascontiguousarray(rows_OD, dtype=np.float32)
    packed = np.empty((n_rows, row_bytes(kind, width)), dtype=np.uint8)
    weights = None if importance_D is None else np.ascontiguousarray(importance_D, dtype=np.float32)
    if weights is not None and weights.shape != (width,):
        raise ValueError(f"importance must be [{width}], not {list(weights.shape)}")
    number = GGML_TYPES[kind][0]

    def run(start: int) -> None:
        part_OD = rows_OD[start : start + _ROWS_AT_ONCE]
        done = quantize_chunk(
            number,
            part_OD.ctypes.data,
            packed[start:].ctypes.data,
            0,
            len(part_OD),
            width,
            None if weights is None else weights.ctypes.data,
        )
        if done != len(part_OD) * packed.shape[1]:
            raise RuntimeError(f"ggml wrote {done:,} bytes of {kind}, not {len(part_OD) * packed.shape[1]:,}")

    _in_parts(run, n_rows, n_threads)
    return packed


def dequantize_rows(packed: np.ndarray, kind: str, width: int, n_threads: int = 1) -> np.ndarray:
    """float32 [O, width]: the numbers that the blocks stand for."""
    values_OD = np.empty((len(packed), width), dtype=np.float32)
    packed = np.ascontiguousarray(packed)
    if not can_hold_weights(kind) or packed.shape[1:] != (row_bytes(kind, width),):
        raise ValueError(f"{packed.shape} are no blocks of {width} weights of {kind}")

    def run(start: int) -> None:
        stop = start + _ROWS_AT_ONCE
        dequantize_into(kind, packed[start:stop], values_OD[start:stop])

    _in_parts(run, len(packed), n_threads)
    return values_OD


def rounded(rows_OD: np.ndarray, kind: str, importance_D: np.ndarray | None = None, n_threads: int = 1) -> np.ndarray:
    """float32 [O, D]: what ``rows_OD`` become when they are stored as ``kind``."""
    if kind == "f32":
        return rows_OD
    packed = quantize_rows(rows_OD, kind, importance_D, n_threads)
    return dequantize_rows(packed, kind, rows_OD.shape[1], n_threads)


def _in_parts(run: Callable[[int], None], n_rows: int, n_threads: int) -> None:
    starts = range(0, n_rows, _ROWS_AT_ONCE)
    if n_threads < 2 or len(starts) < 2:
        for start in starts:
            run(start)
        return
    with ThreadPoolExecutor(n_threads) as pool:  # ctypes lets other threads run meanwhile
        list(pool.map(run, starts))
