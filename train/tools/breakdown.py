"""Where a training step's time goes: one step with a clock around every kernel.

The autograd backend runs as one compiled whole: there the passes, the update and the wait for data are all that can be
distinguished.
"""

from collections.abc import Callable
from time import perf_counter
from typing import Any

from slm.kernels.native import SIGNATURES, Kernels
from train.backend import Backend, KernelBackend
from train.step import StepResult

PARTS = {
    "slm_attention_forward": "attention",
    "slm_attention_backward": "attention",
    "slm_linear": "projections",
    "slm_gate_up": "projections",
    "slm_gate_up_backward": "projections",
    "slm_weight_gradient": "projections",
    "slm_bias_gradient": "projections",
    "slm_cross_entropy": "head and loss",
    "slm_head_backward": "head and loss",
    "slm_pack_forward": "packing weights",
    "slm_pack_backward": "packing weights",
    "slm_rmsnorm": "norms and embedding",
    "slm_rmsnorm_backward": "norms and embedding",
    "slm_embed": "norms and embedding",
    "slm_embed_backward": "norms and embedding",
}
"""The part of the model that each kernel works for. The head's weight gradient is recognised by its rows."""


def breakdown(backend: Backend, step: Callable[[], StepResult]) -> dict[str, float]:
    """Shares of the time of one ``step()``, largest first; they add up to 1."""
    seconds: dict[str, float] = {}
    began = perf_counter()
    if isinstance(backend, KernelBackend):
        kernels = backend.fused.kernels
        backend.fused.use(ClockedKernels(kernels, backend.fused.vocab_size, seconds))
        result = step()
        backend.fused.use(kernels)
    else:
        result = step()
    total = perf_counter() - began
    seconds |= {"optimizer": result.update_seconds, "data wait": result.data_seconds}
    rest = total - sum(seconds.values())
    seconds["other" if isinstance(backend, KernelBackend) else "forward and backward"] = rest
    return {name: each / total for name, each in sorted(seconds.items(), key=lambda pair: -pair[1])}


class ClockedKernels(Kernels):
    """The functions of ``kernels`` with a clock around each; ``seconds`` gets the time by part."""

    def __init__(self, kernels: Kernels, vocab_size: int, seconds: dict[str, float]) -> None:
        vars(self).update(vars(kernels))
        for name in SIGNATURES:
            setattr(self, name, _clocked(name, getattr(kernels, name), vocab_size, seconds))


def _clocked(name: str, function: Callable[..., Any], vocab_size: int, seconds: dict[str, float]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        began = perf_counter()
        result = function(*arguments)
        part = PARTS.get(name)
        if name == "slm_weight_gradient" and arguments[5] == vocab_size:
            part = "head and loss"
        if part:
            seconds[part] = seconds.get(part, 0.0) + perf_counter() - began
        return result

    return call
