"""One matrix of a model in quantization-aware training, and when and how it is rounded.

Tested in tests/train/qat/test_fake_quant.py.

Shape suffixes: O output rows, D input columns, C bytes of a row's blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from slm.llama.blocks.compensated import Compensation

TURNS = {"iq4_nl": 32, "q4_k": 16, "q5_k": 16, "q6_k": 8, "q3_k": 4, "q4_0": 4}
"""Types with a long search for scales in llama.cpp: each step quantizes one of this many parts of a matrix anew. The
rows of the other parts keep their blocks."""


@dataclass(kw_only=True)
class Quantized:
    """One quantized matrix. All three tensors keep their memory; one of the first two is the parameter's data."""

    kind: str
    master: Tensor
    rounded: Tensor
    blocks: Tensor
    importance: Tensor | None = None
    """f32 [D]: the mean square of what arrives at each column."""
    compensation: "Compensation | None" = None
    """How its columns make up for each other's errors; None: they are rounded to the nearest values."""
    number: int = 0
    """The compensation's number: matrices that share one are quantized at the same steps, others at other steps."""
    turns: int = 1
    """Each step quantizes one of this many parts; with a compensation, one step of this many the whole matrix."""

    def due(self, step: int) -> slice | None:
        """The rows that are next."""
        if self.compensation is not None:
            return slice(None) if (step + self.number) % self.turns == 0 else None
        turn, n_rows = step % self.turns, len(self.master)
        return slice(n_rows * turn // self.turns, n_rows * (turn + 1) // self.turns)

    def values_of_blocks(self) -> None:
        """Make the rounded values those of the blocks."""
        from slm.llama.blocks import codec

        values_OD = codec.dequantize(self.kind, self.blocks.numpy(), self.master.shape[1])
        self.rounded.copy_(torch.from_numpy(values_OD))


def compensate(matrices: Sequence[Quantized], n_threads: int) -> None:
    """Quantize whole matrices so that columns make up for each other's errors; those of a type and an input at once."""

    def alike(each: Quantized) -> tuple[int, str]:
        return each.number, each.kind

    for _, group in groupby(sorted(matrices, key=alike), key=alike):
        some = list(group)
        assert some[0].compensation is not None
        weights_OD = np.concatenate([each.master.detach().numpy() for each in some])
        blocks_OC = torch.from_numpy(some[0].compensation.round(weights_OD, some[0].kind, n_threads=n_threads))
        for each, part_OC in zip(some, blocks_OC.split([len(each.master) for each in some]), strict=True):
            each.blocks.copy_(part_OC)
            each.values_of_blocks()
