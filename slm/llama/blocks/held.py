"""A matrix that stays in a quantized type's blocks in memory; its rows are unpacked by ggml when they are read.

Tested in tests/train/lora/test_held_base.py.
"""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from slm.llama.blocks.codec import dequantize_into, quantize_chunk, row_bytes
from slm.llama.gguf_check import GGML_TYPES
from slm.machine.hardware import compute_threads

PIECE = 1 << 17
"""Values that a thread takes at a time."""


class HeldBlocks:
    """``weights`` (float32 [O, D]) as blocks of the type ``kind``; D is a multiple of its block."""

    def __init__(self, kind: str, weights: np.ndarray) -> None:
        self.kind = kind
        rows, self._width = self.shape = weights.shape
        self._blocks = np.empty((rows, row_bytes(kind, self._width)), np.uint8)
        weights, number = np.ascontiguousarray(weights, dtype=np.float32), GGML_TYPES[kind][0]

        def quantize(some: slice) -> None:
            part, blocks = weights[some], self._blocks[some]
            quantize_chunk(number, part.ctypes.data, blocks.ctypes.data, 0, *part.shape, None)

        list(_pool().map(quantize, self._pieces(rows)))

    @property
    def nbytes(self) -> int:
        return self._blocks.nbytes

    def rows(self, some: slice | np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """The values of these rows, float32 [rows, D], in ``out`` where it is given."""
        blocks = self._blocks[some]
        if out is None:
            out = np.empty((len(blocks), self._width), np.float32)
        values = out

        def unpack(piece: slice) -> None:
            dequantize_into(self.kind, blocks[piece], values[piece])

        list(_pool().map(unpack, self._pieces(len(blocks))))
        return out

    def _pieces(self, rows: int) -> list[slice]:
        step = max(1, PIECE // self._width)
        return [slice(start, start + step) for start in range(0, rows, step)]


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(compute_threads(), thread_name_prefix="blocks")
