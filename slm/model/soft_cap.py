"""Soft-capping (Gemma 2): values x become cap * tanh(x / cap), which never reaches the cap.

Tested in tests/slm/model/test_architectures.py.
"""

import torch
from torch import Tensor


def soft_capped(x: Tensor, cap: float | None) -> Tensor:
    """``x`` capped, in its own precision; ``x`` itself where ``cap`` is None or 0."""
    return torch.tanh(x / cap) * cap if cap else x


def soft_cap_slope(capped: Tensor, cap: float) -> Tensor:
    """The derivative of capped values in those before the cap, from the capped ones."""
    return 1 - (capped / cap).square()
