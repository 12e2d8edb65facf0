"""The low-rank terms of an adapter's layers: y = x W^T + scale (x A^T) B^T, and what its backward pass adds.

No product here is as large as one with W, and W stays as it is: neither it nor its gradient is held a second time.

Shape suffixes: N positions, O outputs of all layers of a stack, I inputs, R the ranks of its adapters together, filled
up to the kernels' width.

Tested in tests/slm/kernels/test_low_rank.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from slm.kernels.gradients import gradient_of, run_hooks
from slm.kernels.native import Kernels


@dataclass(frozen=True)
class LowRank:
    """What a weight has beside it."""

    a: nn.Parameter
    """[rank, inputs], f32."""
    b: nn.Parameter
    """[outputs, rank], f32."""
    scale: float
    """What B A is multiplied by."""


def set_low_rank(weight: Tensor, low_rank: LowRank) -> None:
    """From now on the kernels compute with this weight and its low-rank term."""
    weight.slm_low_rank = low_rank  # type: ignore[attr-defined]


def low_rank_of(weight: Tensor) -> LowRank | None:
    return getattr(weight, "slm_low_rank", None)


class LowRankStack:
    """The adapters of layers that are stacked along their outputs, packed as the kernels read them.

    All A lie below one another. B's are the blocks of a diagonal, times their scale: a layer's outputs read what its
    own A makes.
    """

    def __init__(self, weights: Sequence[Tensor], kernels: Kernels) -> None:
        self._parts: list[tuple[LowRank, slice, slice]] = []
        """Each adapter, with its place among the outputs and in R."""
        row = inner = 0
        for weight in weights:
            if (own := low_rank_of(weight)) is not None:
                self._parts.append((own, slice(row, row + len(weight)), slice(inner, inner + len(own.a))))
                inner += len(own.a)
            row += len(weight)
        self.rows, self.width = row, weights[0].shape[1]
        self.rank = inner + -inner % kernels.slm_width_multiple()
        self._packed: tuple[Tensor, ...] = ()

    def forget(self) -> None:
        """A and B have changed."""
        self._packed = ()

    def add_forward(
        self, kernels: Kernels, x: Tensor, u: Tensor, out: Sequence[Tensor], residual: Tensor | None = None
    ) -> None:
        """Write scale (x A^T) B^T, plus ``residual``, to ``out``: the outputs of all layers in one tensor, or each
        layer's in its own, all as wide. ``u`` [N, R] gets x A^T."""
        _, b, *_ = self._layouts(kernels)
        self.inner(kernels, x, u)
        rows, step = self.rows // len(out), len(b) // len(out)
        for place, each in enumerate(out):
            kernels.slm_linear(u, len(x), self.rank, b[place * step :], rows, residual, each)

    def inner(self, kernels: Kernels, x: Tensor, u: Tensor) -> None:
        """Write x A^T to ``u`` [N, R]."""
        a, *_ = self._layouts(kernels)
        kernels.slm_linear(x, len(x), self.width, a, self.rank, None, u)

    def add_backward(self, kernels: Kernels, dy: Tensor, v: Tensor, dx: Tensor) -> None:
        """Write scale (dy B) A to ``dx``. ``v`` [N, R] gets scale dy B."""
        *_, a, b = self._layouts(kernels)
        kernels.slm_linear(dy, len(dy), self.rows, b, self.rank, None, v)
        kernels.slm_linear(v, len(dy), self.rank, a, self.width, None, dx)

    def add_gradients(self, da_RI: Tensor, db_RO: Tensor) -> None:
        """Add the gradients of A (v^T x), and of B turned and without its scale (u^T dy), to theirs."""
        for own, rows, inner in self._parts:
            _add(own.a, da_RI[inner])
            _add(own.b, own.scale * db_RO[inner, rows].T)
            run_hooks(own.a, own.b)

    def _layouts(self, kernels: Kernels) -> tuple[Tensor, ...]:
        """A and B packed for the forward pass, then for the backward pass."""
        if not self._packed:
            a_RI, b_OR = torch.zeros(self.rank, self.width), torch.zeros(self.rows, self.rank)
            for own, rows, inner in self._parts:
                a_RI[inner] = own.a.detach()
                torch.mul(own.b.detach(), own.scale, out=b_OR[rows, inner])
            layouts: list[Tensor] = []
            for weight in (a_RI, b_OR) * 2:
                n, k = weight.shape
                out = torch.empty(n * k // kernels.values_per_unit, dtype=torch.int32)
                if len(layouts) < 2:
                    kernels.slm_pack_forward(weight, n, k, out, 0)
                else:
                    kernels.slm_pack_backward(weight, n, k, out, 0, n)
                layouts.append(out)
            self._packed = tuple(layouts)
        return self._packed


def _add(parameter: nn.Parameter, gradient: Tensor) -> None:
    grad, add = gradient_of(parameter)
    if add:
        grad += gradient
    else:
        grad.copy_(gradient)
