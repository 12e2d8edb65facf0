"""A short name for a model's weights, so that an adapter can be told from one of another model with the same shapes.

Two copies of one model have the same fingerprint, in f32 as in bf16: values count as they are in bf16. It covers every
tensor's name, shape and a few of its rows. Continued training changes all of them.

Tested in tests/slm/model/test_lora.py.
"""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

from slm.model.layers.held import Values, held_of, rows_of

ROWS = 16
"""Evenly spaced values per tensor, including the first and the last. 350M parameters take about 10 MB."""
_LENGTH = 16


def fingerprint(weights: Mapping[str, Tensor]) -> str:
    """16 hexadecimal digits for weights by their Hugging Face names."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights.parameter(name) if isinstance(weights, Values) else weights[name].detach()
        digest.update(f"{name} {list(tensor.shape)}\n".encode())
        if tensor.dim() > 1:
            numbers = torch.linspace(0, len(tensor) - 1, min(ROWS, len(tensor))).round().long()
            tensor = tensor[numbers] if held_of(tensor) is None else rows_of(tensor, numbers)
        digest.update(tensor.to(torch.bfloat16).contiguous().view(torch.int16).numpy().tobytes())
    return digest.hexdigest()[:_LENGTH]
