"""The numbers that a block can stand for once its scales are fixed, and how a choice among them is written into it.

A weight of a block is ``scale * level - offset``. Scale and offset belong to a part of the block and are kept; the
level is one of the type's, chosen by a code of 2 to 8 bits. The layouts follow ggml-common.h.

Shape suffixes: N blocks, S bytes of a block, W weights of a block.
"""

from dataclasses import dataclass

import numpy as np

from slm.llama.gguf_check import GGML_TYPES

_NONLINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


@dataclass(frozen=True)
class _Plane:
    """Some bits of every code: ``length`` bytes from ``start``, taken ``width`` at a time, once for each shift."""

    start: int
    length: int
    width: int
    shifts: tuple[int, ...]
    up: int = 0
    """Where the bits stand in the code."""

    @property
    def mask(self) -> int:
        """Bit mask of one code."""
        return (1 << (8 // len(self.shifts))) - 1


@dataclass(frozen=True)
class _Layout:
    planes: tuple[_Plane, ...]
    levels: tuple[int, ...]
    """The level of each code, rising."""
    flipped: int = 0
    """Bits of a code that are stored inverted."""


_BITS = tuple(range(8))
_NIBBLES, _PAIRS = (0, 4), (0, 2, 4, 6)
_LAYOUTS = {
    "q4_0": _Layout((_Plane(2, 16, 16, _NIBBLES),), tuple(range(-8, 8))),
    "iq4_nl": _Layout((_Plane(2, 16, 16, _NIBBLES),), _NONLINEAR),
    "q5_0": _Layout((_Plane(6, 16, 16, _NIBBLES), _Plane(2, 4, 1, _BITS, up=4)), tuple(range(-16, 16))),
    "q8_0": _Layout((_Plane(2, 32, 32, (0,)),), tuple(range(-128, 128)), flipped=0x80),
    "iq4_xs": _Layout((_Plane(8, 128, 16, _NIBBLES),), _NONLINEAR),
    "q2_k": _Layout((_Plane(16, 64, 32, _PAIRS),), tuple(range(4))),
    "q3_k": _Layout((_Plane(32, 64, 32, _PAIRS), _Plane(0, 32, 32, _BITS, up=2)), tuple(range(-4, 4))),
    "q4_k": _Layout((_Plane(16, 128, 32, _NIBBLES),), tuple(range(16))),
    "q5_k": _Layout((_Plane(48, 128, 32, _NIBBLES), _Plane(16, 32, 32, _BITS, up=4)), tuple(range(32))),
    "q6_k": _Layout((_Plane(0, 128, 64, _NIBBLES), _Plane(128, 64, 32, _PAIRS, up=4)), tuple(range(-32, 32))),
}
KINDS = tuple(_LAYOUTS)
"""The types with levels that can be chosen here."""


def levels(kind: str) -> np.ndarray:
    """float32: the level of each code, rising."""
    return np.array(_LAYOUTS[kind].levels, np.float32)


@dataclass(frozen=True, kw_only=True)
class Grid:
    """What the weights of some blocks may be."""

    kind: str
    scale: np.ndarray
    """float32 [N, W]."""
    offset: np.ndarray
    """float32 [N, W]."""

    def columns(self, order_W: np.ndarray) -> "Columns":
        """The same by columns, those of ``order_W``."""
        scale_WN = np.ascontiguousarray(self.scale.T[order_W])
        # A scale of zero leaves no choice: every code stands for the same value.
        divisor_WN = np.where(scale_WN == 0, np.float32(1), scale_WN)
        offset_WN = np.ascontiguousarray(self.offset.T[order_W]) if self.offset.any() else None
        return Columns(kind=self.kind, scale=scale_WN, divisor=divisor_WN, offset=offset_WN, levels=levels(self.kind))


@dataclass(frozen=True, kw_only=True)
class Columns:
    """What the weights of some blocks may be, column by column."""

    kind: str
    scale: np.ndarray
    """float32 [W, N]."""
    divisor: np.ndarray
    """float32 [W, N]: the scale, where it is not zero."""
    offset: np.ndarray | None
    """float32 [W, N]; None: zero."""
    levels: np.ndarray
    """float32: the level of each code, rising."""

    def nearest(self, weights_N: np.ndarray, column: int) -> tuple[np.ndarray, np.ndarray]:
        """uint8 [N], the codes with the values nearest to one weight of each block, and float32 [N], these values."""
        wanted_N = weights_N if self.offset is None else weights_N + self.offset[column]
        wanted_N = wanted_N / self.divisor[column]
        if self.kind in ("iq4_nl", "iq4_xs"):
            codes_N = np.searchsorted((self.levels[1:] + self.levels[:-1]) / 2, wanted_N)
            level_N = self.levels[codes_N]
        else:
            level_N = np.rint(wanted_N, out=wanted_N)
            np.maximum(level_N, self.levels[0], out=level_N)
            np.minimum(level_N, self.levels[-1], out=level_N)
            codes_N = level_N - self.levels[0]
        values_N = self.scale[column] * level_N
        if self.offset is not None:
            values_N -= self.offset[column]
        return codes_N.astype(np.uint8), values_N


def read_grid(kind: str, blocks_NS: np.ndarray) -> Grid:
    """The grid that the scales of the blocks (uint8) make."""
    scale_NP, offset_NP = _SCALES[kind](blocks_NS)
    parts = GGML_TYPES[kind][1] // scale_NP.shape[1]
    if offset_NP is None:
        offset_NP = np.zeros_like(scale_NP)
    return Grid(kind=kind, scale=np.repeat(scale_NP, parts, axis=1), offset=np.repeat(offset_NP, parts, axis=1))


def read_codes(kind: str, blocks_NS: np.ndarray) -> np.ndarray:
    """uint8 [N, W]: the codes that the blocks hold."""
    layout, n = _LAYOUTS[kind], len(blocks_NS)
    codes_NW = np.zeros((n, GGML_TYPES[kind][1]), np.uint8)
    for plane in layout.planes:
        part = blocks_NS[:, plane.start : plane.start + plane.length].reshape(n, -1, 1, plane.width)
        shifts = np.array(plane.shifts, np.uint8).reshape(1, 1, -1, 1)
        codes_NW |= (((part >> shifts) & np.uint8(plane.mask)) << np.uint8(plane.up)).reshape(n, -1)
    return codes_NW ^ np.uint8(layout.flipped)


def write_codes(kind: str, blocks_NS: np.ndarray, codes_NW: np.ndarray) -> None:
    """Put the codes into the blocks. Their scales stay."""
    layout, n = _LAYOUTS[kind], len(blocks_NS)
    codes_NW = codes_NW ^ np.uint8(layout.flipped)
    for plane in layout.planes:
        shifts = np.array(plane.shifts, np.uint8).reshape(1, 1, -1, 1)
        part = (codes_NW >> np.uint8(plane.up)) & np.uint8(plane.mask)
        shifted = part.reshape(n, -1, len(plane.shifts), plane.width) << shifts
        packed = np.bitwise_or.reduce(shifted, axis=2).reshape(n, plane.length)
        blocks_NS[:, plane.start : plane.start + plane.length] = packed


def _half(blocks_NS: np.ndarray, start: int) -> np.ndarray:
    """float32 [N, 1]: the f16 number at a place."""
    return np.ascontiguousarray(blocks_NS[:, start : start + 2]).view(np.float16).astype(np.float32)


def _one_scale(blocks_NS: np.ndarray) -> tuple[np.ndarray, None]:
    return _half(blocks_NS, 0), None


def _iq4_xs(blocks_NS: np.ndarray) -> tuple[np.ndarray, None]:
    high_N = np.ascontiguousarray(blocks_NS[:, 2:4]).view(np.uint16)
    high_NP = (high_N >> np.arange(0, 16, 2, dtype=np.uint16)) & 3
    low_NP = ((blocks_NS[:, 4:8, None] >> np.array([0, 4], np.uint8)) & 15).reshape(len(blocks_NS), -1)
    return _half(blocks_NS, 0) * ((low_NP | (high_NP << 4)).astype(np.float32) - 32), None


def _q2_k(blocks_NS: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    packed_NP = blocks_NS[:, :16]
    scale_NP = _half(blocks_NS, 80) * (packed_NP & 15).astype(np.float32)
    return scale_NP, _half(blocks_NS, 82) * (packed_NP >> 4).astype(np.float32)


def _q3_k(blocks_NS: np.ndarray) -> tuple[np.ndarray, None]:
    n = len(blocks_NS)
    low_NP = ((blocks_NS[:, None, 96:104] >> np.array([0, 4], np.uint8)[:, None]) & 15).reshape(n, -1)
    high_NP = ((blocks_NS[:, None, 104:108] >> np.array(_PAIRS, np.uint8)[:, None]) & 3).reshape(n, -1)
    return _half(blocks_NS, 108) * ((low_NP | (high_NP << 4)).astype(np.float32) - 32), None


def _q4_k(blocks_NS: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eight scales and eight minima of 6 bits in 12 bytes, also for q5_k."""
    first_NP, second_NP, third_NP = (blocks_NS[:, start : start + 4] for start in (4, 8, 12))
    scales_NP = np.concatenate([first_NP & 63, (third_NP & 15) | ((first_NP >> 2) & 48)], axis=1)
    minima_NP = np.concatenate([second_NP & 63, (third_NP >> 4) | ((second_NP >> 2) & 48)], axis=1)
    return _half(blocks_NS, 0) * scales_NP.astype(np.float32), _half(blocks_NS, 2) * minima_NP.astype(np.float32)


def _q6_k(blocks_NS: np.ndarray) -> tuple[np.ndarray, None]:
    return _half(blocks_NS, 208) * np.ascontiguousarray(blocks_NS[:, 192:208]).view(np.int8).astype(np.float32), None


_SCALES = {
    **dict.fromkeys(("q4_0", "iq4_nl", "q5_0", "q8_0"), _one_scale),
    "iq4_xs": _iq4_xs,
    "q2_k": _q2_k,
    "q3_k": _q3_k,
    **dict.fromkeys(("q4_k", "q5_k"), _q4_k),
    "q6_k": _q6_k,
}
