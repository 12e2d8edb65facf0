"""The rate of the training kernels on this machine: forward and backward pass of a small model, in about a second.

Tested in tests/slm/kernels/test_choice.py.
"""

from time import perf_counter
from typing import Any

import torch

from slm.kernels.fused import Fused
from slm.kernels.library import load
from slm.machine.probes import torch_threads
from slm.model.config import ModelConfig
from slm.model.transformer import LanguageModel

SHAPE = ModelConfig(
    arch="llama",
    n_layers=2,
    d_model=512,
    n_heads=8,
    n_kv_heads=4,
    head_dim=64,
    ffn_dim=1536,
    vocab_size=4096,
    seq_len=512,
    tie_embeddings=True,
)
SEQUENCES, PASSES = 2, 3
"""Passes that are timed after a first one; the fastest counts, since other programs only add time."""


def step_rate(name: str, threads: int, shape: ModelConfig = SHAPE) -> dict[str, Any]:
    """GFLOP/s (6 N + causal attention per token) of the kernels of the variant ``name``, without the optimizer."""
    with torch_threads(threads):
        torch.manual_seed(1)
        fused = Fused(LanguageModel(shape).train(), load(name))
        ids_BT = torch.randint(0, shape.vocab_size, (SEQUENCES, shape.seq_len))
        best = float("inf")
        for index in range(PASSES + 1):
            began = perf_counter()
            fused.loss_and_gradients(ids_BT, ids_BT)
            best = min(best, perf_counter() - began) if index else best
    n_tokens = ids_BT.numel()
    flops = shape.flops_per_token(shape.seq_len) * n_tokens
    return {"kernels": name, "gflops": flops / best / 1e9, "tokens_per_s": n_tokens / best, "threads": threads}
