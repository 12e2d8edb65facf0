"""A matrix rounded onto the grid of a ggml type, column by column, each error made up for by the columns that follow.

GPTQ (Frantar et al. 2023): the error of a layer's output, ||X W' - X Q'||, is quadratic in the weights. When a column
is rounded, the columns not yet rounded move so that the sum changes least; with U the upper Cholesky factor of the
inverse of H = X'X, they move by the column's error / U[d, d] times U[d, later columns]. Here the grid is a ggml
block's: when the first column of a block has its turn, ggml's own search finds the block's scales for the weights as
they are then, and they stay. Blocks have their turns by falling importance, and so have the columns within one.

Shape suffixes: O output rows, D input columns, W columns of a block, C bytes of a row's blocks.
"""

import numpy as np
import torch
from torch import Tensor

from slm.llama.blocks.grids import read_grid, write_codes
from slm.llama.blocks.rounding import dequantize_rows, quantize_rows
from slm.llama.gguf_check import GGML_TYPES

DAMPING = 0.01
"""Of the mean of H's diagonal, added to the diagonal: the factor exists, and rare inputs move little."""
_AT_ONCE = 32
"""Columns whose effect on later blocks is summed up in one matrix product."""


def round_compensated(
    weight_OD: np.ndarray, moments_DD: Tensor, kind: str, *, importance: bool = True, n_threads: int = 1
) -> np.ndarray:
    """uint8 [O, C]: the blocks of ``weight_OD`` (float32) in the type ``kind``, a member of ``grids.KINDS``.

    ``moments_DD``: sums (or means) of products of the inputs, in f32 or f64. ``importance``: whether the search for
    scales weighs the columns; without it, it is what llama.cpp does without an importance matrix.
    """
    _, width, n_bytes = GGML_TYPES[kind]
    n_rows, n_columns = weight_OD.shape
    n_blocks = n_columns // width
    order_D = _order(moments_DD.diagonal().double().numpy(), width)
    factor_DD = _factor(moments_DD, order_D)
    # By columns, in the order of their turns: what a turn needs lies together.
    left_DO = torch.from_numpy(np.ascontiguousarray(weight_OD.T[order_D]))
    # What an error in a column costs once the later ones have made up for it.
    cost_D = torch.empty(n_columns)
    cost_D[torch.from_numpy(order_D)] = factor_DD.diagonal().square().reciprocal()
    packed = np.empty((n_rows, n_blocks, n_bytes), np.uint8)
    for start in range(0, n_columns, width):
        columns_W = order_D[start : start + width]
        block = int(columns_W[0]) // width
        inside_W = columns_W - block * width
        weights_OW = np.empty((n_rows, width), np.float32)
        weights_OW[:, inside_W] = left_DO[start : start + width].T.numpy()
        weights_W = cost_D[block * width : (block + 1) * width].numpy() if importance else None
        blocks = quantize_rows(weights_OW, kind, weights_W, n_threads)
        grid = read_grid(kind, blocks)
        codes_OW = np.empty((n_rows, width), np.uint8)
        for first in range(start, start + width, _AT_ONCE):
            last = first + _AT_ONCE
            errors_AO = torch.empty(_AT_ONCE, n_rows)
            for d in range(first, last):
                column = int(inside_W[d - start])
                weights_O = left_DO[d].numpy()
                codes_O = grid.nearest(weights_O, column)
                codes_OW[:, column] = codes_O
                error_O = (left_DO[d] - torch.from_numpy(grid.values(codes_O, column))) / factor_DD[d, d]
                left_DO[d + 1 : last] -= torch.outer(factor_DD[d, d + 1 : last], error_O)
                errors_AO[d - first] = error_O
            left_DO[last:] -= factor_DD[first:last, last:].T @ errors_AO
        write_codes(kind, blocks, codes_OW)
        packed[:, block] = blocks
    return packed.reshape(n_rows, -1)


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
    """float32 [D, D]: the upper Cholesky factor of the damped inverse, columns in their order. A column whose input is
    always zero stands for itself."""
    order = torch.from_numpy(order_D)
    h_DD = moments_DD.double()[order][:, order]
    diagonal_D = h_DD.diagonal()
    damping = DAMPING * float(diagonal_D.mean()) or 1.0
    diagonal_D += damping
    inverse_DD = torch.cholesky_inverse(torch.linalg.cholesky(h_DD))
    return torch.linalg.cholesky(inverse_DD, upper=True).float()
