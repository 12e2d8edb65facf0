"""A short name for a model's weights, so that an adapter can be told from one of another model with the same shapes.

Two copies of one model have the same fingerprint, in f32 as in bf16: values count as they are in bf16. It covers every
tensor's name, shape and a few of its rows. Continued training changes all of them.

Tested in tests/slm/model/test_lora.py.
"""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

ROWS = 16
"""Evenly spaced values per tensor, including the first and the last. 350M parameters take about 10 MB."""
_LENGTH = 16


def fingerprint(weights: Mapping[str, Tensor]) -> str:
    """16 hexadecimal digits for weights by their Hugging Face names."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach()
        digest.update(f"{name} {list(tensor.shape)}\n".encode())
        rows = torch.linspace(0, len(tensor) - 1, min(ROWS, len(tensor))).round().long() if tensor.dim() > 1 else ...
        digest.update(tensor[rows].to(torch.bfloat16).contiguous().view(torch.int16).numpy().tobytes())
    return digest.hexdigest()[:_LENGTH]
