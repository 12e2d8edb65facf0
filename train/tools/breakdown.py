"""Where a training step's time goes: one step with a clock around every kernel.

The autograd backend runs as one compiled whole: there the passes, the update and the wait for data are all that can be
distinguished.
"""

from collections.abc import Callable
from time import perf_counter
from typing import Any

from slm.kernels.native import SIGNATURES, Kernels
from slm.train.backend import Backend, KernelBackend
from slm.train.step import StepResult

PARTS = {
    "slm_attention_forward": "attention",
    "slm_attention_backward": "attention",
    "slm_short_conv": "short convolutions",
    "slm_short_conv_backward": "short convolutions",
    "slm_linear": "projections",
    "slm_gate_up": "projections",
    "slm_gate_up_backward": "projections",
    "slm_weight_gradient": "projections",
    "slm_bias_gradient": "projections",
    "slm_cross_entropy": "head and loss",
    "slm_head_backward": "head and loss",
    "slm_head_logits": "head and loss",
    "slm_softmax": "head and loss",
    "slm_head_backward_part": "head and loss",
    "slm_pack_forward": "packing weights",
    "slm_pack_backward": "packing weights",
    "slm_rmsnorm": "norms and embedding",
    "slm_rmsnorm_backward": "norms and embedding",
    "slm_embed": "norms and embedding",
    "slm_embed_backward": "norms and embedding",
}
"""The part of the model that each kernel works for. A weight gradient after ``slm_head_backward`` is the head's."""


def breakdown(backend: Backend, step: Callable[[], StepResult]) -> dict[str, float]:
    """Shares of the time of one ``step()``, largest first; they add up to 1."""
    seconds: dict[str, float] = {}
    began = perf_counter()
    if isinstance(backend, KernelBackend):
        kernels = backend.fused.kernels
        backend.fused.use(ClockedKernels(kernels, seconds))
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

    def __init__(self, kernels: Kernels, seconds: dict[str, float], clock: "_Clock | None" = None) -> None:
        clock = clock or _Clock(seconds)
        vars(self).update(vars(kernels))
        for name in SIGNATURES:
            setattr(self, name, clock.around(name, getattr(kernels, name)))
        self.head = self if kernels.head is kernels else ClockedKernels(kernels.head, seconds, clock)


class _Clock:
    """Adds the time of each call to its part."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds = seconds
        self._last = ""
        """The kernel that was called last."""

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        part = PARTS.get(name)
        if part is None:
            return function

        def call(*arguments: Any) -> Any:
            began = perf_counter()
            result = function(*arguments)
            of_head = name == "slm_weight_gradient" and self._last.startswith("slm_head_backward")
            self._add("head and loss" if of_head else part, perf_counter() - began)
            self._last = self._last if of_head else name
            return result

        return call

    def _add(self, part: str, seconds: float) -> None:
        self._seconds[part] = self._seconds.get(part, 0.0) + seconds
