"""Weights in the two layouts that the kernels' matrix products read.

Tested in tests/slm/kernels/test_fused.py.
"""

from typing import Literal

import torch
from torch import Tensor

from slm.kernels.low_rank import LowRankStack, low_rank_of
from slm.kernels.native import Kernels
from slm.model.layers.held import parts

Direction = Literal["forward", "backward"]


class PackedWeights:
    """Linear layers stacked along their outputs: for x W^T (forward) and dy W (backward), in the kernels' precision.

    While ``keep`` is set a layout is made once and stays until ``forget``; otherwise every use makes it again, in
    memory that all such stacks share.
    """

    shared = torch.empty(0, dtype=torch.int32)

    def __init__(self, kernels: Kernels, weights: list[Tensor], *, keep: bool, side_by_side: bool = False) -> None:
        self.weights = weights
        self.rows, self.width = sum(len(w) for w in weights), weights[0].shape[1]
        self.kernels, self.keep, self._side_by_side = kernels, keep, side_by_side
        self._memory: dict[Direction, Tensor] = {}
        self._ready: set[Direction] = set()
        self._made_of: list[tuple[int, int]] = []
        self.low_rank: LowRankStack | None = None
        """The adapters of the layers, where they have some."""

    @property
    def frozen(self) -> bool:
        """Whether none of the weights is trained."""
        return not any(weight.requires_grad for weight in self.weights)

    def forget(self) -> None:
        """The weights have changed, if they are not frozen, and adapters have: what was made of them is out of date
        (its memory is used again)."""
        if not self.frozen:
            self._ready.clear()
        if self.low_rank is not None:
            self.low_rank.forget()

    def check(self) -> None:
        """Forget what was made of other tensors, or before changes that autograd counts; see adapters that are new."""
        if self.low_rank is None and any(map(low_rank_of, self.weights)):
            self.low_rank = LowRankStack(self.weights, self.kernels)
        now = [(weight.data_ptr(), weight._version) for weight in self.weights]
        if now != self._made_of:
            self._made_of = now
            self._ready.clear()

    def layout(self, direction: Direction) -> Tensor:
        """The weights in panels of columns, units of 32 bits (pairs of bf16, or f32): int32 [rows * width / values per
        unit]."""
        if direction in self._ready:
            return self._memory[direction]
        per_unit = self.kernels.values_per_unit
        size = self.rows * self.width // per_unit
        if not self.keep:
            out = _shared(size)
        else:
            if direction not in self._memory:
                self._memory[direction] = torch.empty(size, dtype=torch.int32)
            out = self._memory[direction]
            self._ready.add(direction)
        row = 0
        for weight in self.weights:
            for start, part in parts(weight):
                n, k = part.shape
                if direction == "backward":
                    self.kernels.slm_pack_backward(part, n, k, out, row + start, self.rows)
                elif self._side_by_side:
                    self._pack_side_by_side(part, row + start, out)
                else:
                    self.kernels.slm_pack_forward(part, n, k, out[(row + start) * k // per_unit :], 0)
            row += len(weight)
        return out

    def _pack_side_by_side(self, part: Tensor, row: int, out: Tensor) -> None:
        """Rows from ``row`` on: those of the stack's first half are the left columns of the panels, those of its second
        half the right ones."""
        half, k = self.rows // 2, self.width
        cut = min(max(half - row, 0), len(part))
        for piece, start, column in ((part[:cut], row, 1), (part[cut:], row + cut - half, 2)):
            if len(piece):
                at = 2 * start * k // self.kernels.values_per_unit
                self.kernels.slm_pack_forward(piece, len(piece), k, out[at:], column)

    def layout_of(self, direction: Direction, some: slice) -> Tensor:
        """The layout of ``some`` rows of the one layer, as if it had no others, in the memory that all stacks share."""
        (weight,) = self.weights
        n_rows, per_unit = some.stop - some.start, self.kernels.values_per_unit
        out = _shared(n_rows * self.width // per_unit)
        for start, part in parts(weight, some):
            n, k = part.shape
            if direction == "backward":
                self.kernels.slm_pack_backward(part, n, k, out, start, n_rows)
            else:
                self.kernels.slm_pack_forward(part, n, k, out[start * k // per_unit :], 0)
        return out


def _shared(size: int) -> Tensor:
    if len(PackedWeights.shared) < size:
        PackedWeights.shared = torch.empty(size, dtype=torch.int32)
    return PackedWeights.shared
