"""The rate of the training kernels on this machine: forward and backward pass of a small model, in about a second.

``python -m slm.kernels.step_rate NAME THREADS`` prints one line of JSON: ``{"gain": ...}``, the kernels' rate as a
multiple of PyTorch's.

Tested in tests/slm/kernels/test_choice.py.
"""

import json
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch

from slm.kernels.fused import Fused
from slm.kernels.native import load
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
        best = _least_seconds(lambda: fused.loss_and_gradients(ids_BT, ids_BT))
    n_tokens = ids_BT.numel()
    flops = shape.flops_per_token(shape.seq_len) * n_tokens
    return {"kernels": name, "gflops": flops / best / 1e9, "tokens_per_s": n_tokens / best, "threads": threads}


def gain(name: str, threads: int, shape: ModelConfig = SHAPE) -> float:
    """The same rate as a multiple of PyTorch's: the same passes in f32 by autograd, not compiled."""
    with torch_threads(threads):
        torch.manual_seed(1)
        model = LanguageModel(shape).train()
        ids_BT = torch.randint(0, shape.vocab_size, (SEQUENCES, shape.seq_len))

        def step() -> None:
            model.zero_grad()
            model.loss(ids_BT, ids_BT).backward()

        seconds = _least_seconds(step)
    return float(step_rate(name, threads, shape)["tokens_per_s"] * seconds / ids_BT.numel())


def _least_seconds(step: Callable[[], object]) -> float:
    step()
    times = []
    for _ in range(PASSES):
        began = perf_counter()
        step()
        times.append(perf_counter() - began)
    return min(times)


if __name__ == "__main__":
    print(json.dumps({"gain": gain(sys.argv[1], int(sys.argv[2]))}))
