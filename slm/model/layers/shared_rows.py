"""Which positions of a batch the layers compute: each beginning that conversations share once, and nothing behind the
last scored target.

Conversations often begin alike: a system prompt, an instruction. What a causal model makes of a token depends on the
tokens before it alone, so the hidden states of a shared beginning are the same, and its gradient is the sum of all that
see it. Everything but attention works on one token at a time and computes such a row once. Attention (or a short
convolution) is given every conversation whole again: its rows are copied, and their gradients summed.

Shape suffixes: B sequences, T positions each, N = B T, R rows that are computed.

Tested in tests/slm/kernels/test_shared_rows.py.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from slm.model.cross_entropy import IGNORED

LEAST_SAVED = 1 / 16
"""Share of the positions that must be saved: copies for attention cost something, too."""


class Rows(NamedTuple):
    """The rows that are computed."""

    own: Tensor
    """int64 [R]: the position, counted through the whole batch, that each row is computed for."""
    of: Tensor
    """int64 [N]: the row that has each position's values; 0 where they are not needed."""

    def spread(self, x_RD: Tensor, out_ND: Tensor) -> Tensor:
        """Every position's values."""
        return torch.index_select(x_RD, 0, self.of, out=out_ND)

    def take(self, x_ND: Tensor, out_RD: Tensor) -> Tensor:
        """The rows' own values."""
        return torch.index_select(x_ND, 0, self.own, out=out_RD)

    def place(self, dx_RD: Tensor, out_ND: Tensor) -> Tensor:
        """The gradients of values that were taken: zero at all other positions."""
        return out_ND.zero_().index_copy_(0, self.own, dx_RD)

    def gather(self, dx_ND: Tensor, out_RD: Tensor) -> Tensor:
        """The gradients of values that were spread: the sums over their positions, in f32."""
        if out_RD.dtype == torch.float32:
            return out_RD.zero_().index_add_(0, self.of, dx_ND)
        sums_RD = torch.zeros(out_RD.shape, dtype=torch.float32).index_add_(0, self.of, dx_ND.float())
        return out_RD.copy_(sums_RD)


def shared_rows(ids_BT: Tensor, targets_BT: Tensor, starts_BT: Tensor | None) -> Rows | None:
    """The rows of a batch; None where (nearly) all positions have their own. ``starts_BT``: the first position of its
    sequence that each one sees; None: all before it."""
    if ids_BT.ndim != 2 or bool((targets_BT != IGNORED).all()):
        return None
    B, T = ids_BT.shape
    ids, scored = ids_BT.tolist(), (targets_BT != IGNORED).tolist()
    starts = starts_BT.tolist() if starts_BT is not None else [[0] * T] * B
    own, of = list[int](), [0] * (B * T)
    known: dict[tuple[int, int], int] = {}  # from the row before, and a token after it, to this token's row
    for b in range(B):
        t = 0
        while t < T:
            begin, end = t, t + 1
            while end < T and starts[b][end] == begin:
                end += 1
            if starts[b][begin] != begin:
                return None  # it sees what stands before it
            last = next((each for each in reversed(range(begin, end)) if scored[b][each]), begin - 1)
            row = -1
            for each in range(begin, last + 1):
                key = (row, ids[b][each])
                found = known.get(key)
                if found is None or scored[b][each]:  # each scored target has a row
                    found = len(own)
                    own.append(b * T + each)
                    known.setdefault(key, found)
                row = of[b * T + each] = found
            t = end
    if not own or len(own) > (1 - LEAST_SAVED) * B * T:
        return None
    return Rows(torch.tensor(own), torch.tensor(of))
