"""The training kernels tried in their own process: a small model's loss and gradients against plain PyTorch's.

``python -m slm.kernels.self_check NAME`` prints one line of JSON: ``{"right": ..., "error": ...}``. The sizes leave
ends that fill no tile. Where the kernels were built wrong for this processor, the process dies or the answer is wrong.

Tested in tests/slm/kernels/test_choice.py.
"""

import json
import sys

import torch

from slm.kernels.fused import Fused
from slm.kernels.native import VARIANTS, Kernels, Variant, load
from slm.model.config import ModelConfig
from slm.model.transformer import LanguageModel

ALLOWED = {"bf16": 0.05, "f32": 1e-4}
"""The largest distance of all gradients from PyTorch's in f32, as a share of their norm. Right kernels have 0.01 in
bf16 and 1e-6 in f32."""
ALLOWED_INTEGERS = {16: 2e-3, 8: 0.05}
"""The same where products are of integers of this many bits. Right kernels have 2e-4 and 8e-3."""
SHAPE = ModelConfig(
    arch="lfm2",  # one layer with a short convolution, one with attention and norms of queries and keys
    n_layers=2,
    d_model=64,
    n_heads=2,
    n_kv_heads=1,
    head_dim=32,
    ffn_dim=96,
    vocab_size=160,
    seq_len=128,
    tie_embeddings=False,
)


def allowed(variant: Variant) -> float:
    """The distance that its right kernels stay below."""
    return ALLOWED_INTEGERS.get(variant.bits, ALLOWED[variant.precision])


def distance(kernels: Kernels) -> float:
    """How far the kernels' gradients are from PyTorch's in f32, as a share of their norm; NaN where they are not
    finite."""
    torch.manual_seed(1)
    model = LanguageModel(SHAPE).train()
    ids, targets = torch.randint(0, SHAPE.vocab_size, (2, 2, 71))
    model.loss(ids, targets).backward()
    expected = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    Fused(model, kernels).loss_and_gradients(ids, targets)
    pairs = [
        (p.grad, e) for p, e in zip(model.parameters(), expected, strict=True) if p.grad is not None and e is not None
    ]
    apart = torch.stack([(ours - theirs).norm() for ours, theirs in pairs]).norm()
    return (apart / torch.stack([theirs.norm() for _, theirs in pairs]).norm()).item()


def main(name: str) -> None:
    """Try the variant ``name`` and print what was found."""
    kernels = load(name)
    found = distance(kernels)
    print(json.dumps({"right": found < allowed(VARIANTS[name]), "error": found}))


if __name__ == "__main__":
    main(sys.argv[1])
