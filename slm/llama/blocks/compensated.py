"""A matrix rounded onto the grid of a ggml type, column by column, each error made up for by the columns that follow.

GPTQ (Frantar et al. 2023): the error of a layer's output, ||X W' - X Q'||, is quadratic in the weights. When a column
is rounded, the columns not yet rounded move so that the sum changes least; with U the upper Cholesky factor of the
inverse of H = X'X, they move by the column's error / U[d, d] times U[d, later columns]. Here the grid is a ggml
block's: when the first column of a block has its turn, ggml's own search finds the block's scales for the weights as
they are then, and they stay. Blocks have their turns by falling importance, and so have the columns within one.

Shape suffixes: O output rows, D input columns, W columns of a block, C bytes of a row's blocks.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from slm.llama.blocks.grids import read_grid, write_codes
from slm.llama.blocks.rounding import dequantize_rows, quantize_rows
from slm.llama.gguf_check import GGML_TYPES

DAMPING = 0.01
"""Share of the mean of H's diagonal that is added to it, so that the factorization exists and rare inputs change
little."""
_AT_ONCE = 8
"""Number of columns with one matrix product for their effect on later blocks."""


@dataclass(frozen=True, kw_only=True)
class Compensation:
    """How the columns of a matrix make up for each other's errors. It depends on the inputs and the width of a block,
    not on the weights."""

    width: int
    """Columns of a block."""
    order: np.ndarray
    """int64 [D]: the columns in the order of their turns."""
    factor: Tensor
    """f32 [D, D]: the upper Cholesky factor of the damped inverse of H, columns in that order."""

    def cost(self) -> np.ndarray:
        """float32 [D]: what an error in a column costs once the later ones have made up for it."""
        cost_D = np.empty(len(self.order), np.float32)
        cost_D[self.order] = self.factor.diagonal().square().reciprocal().numpy()
        return cost_D

    def round(self, weight_OD: np.ndarray, kind: str, *, importance: bool = True, n_threads: int = 1) -> np.ndarray:
        """uint8 [O, C]: the blocks of ``weight_OD`` (float32) in a type of that width, a member of ``grids.KINDS``.

        Each row is rounded by itself.

        ``importance``: whether the search for scales weighs the columns; without it, it is what llama.cpp does without
        an importance matrix.
        """
        _, width, n_bytes = GGML_TYPES[kind]
        if width != self.width:
            raise ValueError(f"{kind} has blocks of {width} weights, not of {self.width}")
        (n_rows, n_columns), order_D, factor_DD = weight_OD.shape, self.order, self.factor.numpy()
        cost_D = self.cost()
        # By columns, in the order of their turns: what a turn needs lies together.
        left_DO = np.ascontiguousarray(weight_OD.T[order_D])
        packed = np.empty((n_rows, n_columns // width, n_bytes), np.uint8)
        for start in range(0, n_columns, width):
            stop = start + width
            block = int(order_D[start]) // width
            inside_W = order_D[start:stop] - block * width
            weights_OW = np.empty((n_rows, width), np.float32)
            weights_OW[:, inside_W] = left_DO[start:stop].T
            weights_W = cost_D[block * width : (block + 1) * width] if importance else None
            blocks = quantize_rows(weights_OW, kind, weights_W, n_threads)
            columns = read_grid(kind, blocks).columns(inside_W)
            codes_WO = np.empty((width, n_rows), np.uint8)
            for first in range(start, stop, _AT_ONCE):
                last = first + _AT_ONCE
                errors_AO = np.empty((_AT_ONCE, n_rows), np.float32)
                for d in range(first, last):
                    codes_WO[d - start], values_O = columns.nearest(left_DO[d], d - start)
                    error_O = errors_AO[d - first]
                    np.subtract(left_DO[d], values_O, out=error_O)
                    error_O /= factor_DD[d, d]
                    left_DO[d + 1 : last] -= np.multiply.outer(factor_DD[d, d + 1 : last], error_O)
                torch.from_numpy(left_DO[last:]).addmm_(
                    self.factor[first:last, last:].T, torch.from_numpy(errors_AO), alpha=-1
                )
            codes_OW = np.empty((n_rows, width), np.uint8)
            codes_OW[:, inside_W] = codes_WO.T
            write_codes(kind, blocks, codes_OW)
            packed[:, block] = blocks
        return packed.reshape(n_rows, -1)


def compensation(moments_DD: Tensor, kind: str) -> Compensation:
    """For matrices of the type ``kind``. ``moments_DD``: sums (or means) of products of the inputs, in f32 or f64."""
    width = GGML_TYPES[kind][1]
    order_D = _order(moments_DD.diagonal().double().numpy(), width)
    return Compensation(width=width, order=order_D, factor=_factor(moments_DD, order_D))


def round_compensated(
    weight_OD: np.ndarray, moments_DD: Tensor, kind: str, *, importance: bool = True, n_threads: int = 1
) -> np.ndarray:
    """uint8 [O, C]: ``Compensation.round`` for a single matrix."""
    return compensation(moments_DD, kind).round(weight_OD, kind, importance=importance, n_threads=n_threads)


def output_error(weight_OD: np.ndarray, packed: np.ndarray, kind: str, moments_DD: Tensor, n_threads: int = 1) -> float:
    """Sum of squares of the layer's output error for inputs with these ``moments_DD``."""
    difference = dequantize_rows(packed, kind, weight_OD.shape[1], n_threads) - weight_OD
    error_OD = torch.from_numpy(difference)
    return float((error_OD @ moments_DD.float()).mul_(error_OD).sum(dtype=torch.float64))


def _order(diagonal_D: np.ndarray, width: int) -> np.ndarray:
    """The columns in the order of their turns: blocks by falling importance, and the columns of each likewise."""
    by_block = diagonal_D.reshape(-1, width)
    blocks = np.argsort(-by_block.sum(axis=1), kind="stable")
    inside = np.argsort(-by_block, axis=1, kind="stable")
    return np.concatenate([block * width + inside[block] for block in blocks])


def _factor(moments_DD: Tensor, order_D: np.ndarray) -> Tensor:
    """float32 [D, D]: the upper Cholesky factor of the damped inverse, columns in their order. A column with an input
    of zeros only stands for itself."""
    order = torch.from_numpy(order_D)
    h_DD = moments_DD.double()[order][:, order]
    diagonal_D = h_DD.diagonal()
    damping = DAMPING * float(diagonal_D.mean()) or 1.0
    diagonal_D += damping
    inverse_DD = torch.cholesky_inverse(torch.linalg.cholesky(h_DD))
    return torch.linalg.cholesky(inverse_DD, upper=True).float().contiguous()
