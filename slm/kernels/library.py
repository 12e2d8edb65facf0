"""The library of training kernels: built where that has not happened yet, opened, and called with tensors.

The sources are in this folder (bf16) and in ``f32/``; a comment above every function there gives its arguments and
their shapes. Both have the same functions. ``slm.kernels.build`` says which of them can run here.
"""

import ctypes
import functools
from pathlib import Path
from typing import Any

import torch

from slm.kernels.build import VARIANTS

P, L, F, I = ctypes.c_void_p, ctypes.c_long, ctypes.c_float, ctypes.c_int  # noqa: E741
SIZES = {
    "slm_activation_bytes": [],
    "slm_width_multiple": [],
    "slm_max_head_dim": [],
    "slm_cross_entropy_rows": [],
    "slm_attention_scratch": [L, L, L, L],
    "slm_attention_backward_scratch": [L, L, L, L],
    "slm_weight_gradient_scratch": [L, L, L],
    "slm_rmsnorm_backward_scratch": [L],
}
"""Functions of ``sizes.cpp``, which return how much the others need: a buffer is never made from a number that is
written down a second time in Python."""
SIGNATURES = SIZES | {
    "slm_pack_forward": [P, L, L, P, I],
    "slm_pack_backward": [P, L, L, P, L, L],
    "slm_linear": [P, L, L, P, L, P, P],
    "slm_gate_up": [P, L, L, P, L, P, P, P],
    "slm_gate_up_backward": [P, L, L, P, L, P, P, P, P],
    "slm_weight_gradient": [P, L, P, L, L, L, L, P, I, P],
    "slm_attention_forward": [P, L, L, L, L, L, P, P, P, P, F, P, P, P, P],
    "slm_attention_backward": [P, L, L, L, L, L, P, P, P, P, F, P, P, P, P, P, P, P, P],
    "slm_rmsnorm": [P, L, L, P, F, P, P],
    "slm_rmsnorm_backward": [P, P, P, P, L, L, P, P, P, I, P],
    "slm_embed": [P, P, L, L, P],
    "slm_embed_backward": [P, P, L, L, P],
    "slm_cross_entropy": [P, L, L, P, L, P, F, I, P, P],
    "slm_head_backward": [P, L, L, P, L, P, P],
}
"""The C signatures: pointers, longs, floats, ints."""
ALLOCATING = ("slm_attention_forward", "slm_attention_backward")
"""Functions that take memory of their own, and return 1 where there is none."""


class Kernels:
    """The library's functions, taking tensors where C takes pointers (None is a null pointer).

    Shapes, dtypes and contiguity are not checked on the way: they are the caller's duty. ``MemoryError`` where a kernel
    found no memory.
    """

    def __init__(self, path: Path, name: str = "") -> None:
        self.name = name
        """The variant's name in ``slm.kernels.build``."""
        # torch is imported above and has loaded its OpenMP: the library finds that one, and shares its threads.
        library = ctypes.CDLL(str(path))
        for each, arguments in SIGNATURES.items():
            function = getattr(library, each)
            function.argtypes = arguments
            function.restype = L if each in SIZES else I if each in ALLOCATING else None
            if each in ALLOCATING:
                function.errcheck = _check_memory
            setattr(self, each, functools.partial(_call, function))
        self.dtype = {2: torch.bfloat16, 4: torch.float32}[self.slm_activation_bytes()]
        """Of activations."""
        self.values_per_unit = 4 // self.slm_activation_bytes()
        """Packed operands are units of 32 bits: a pair of bf16, or one f32."""

    def __getattr__(self, name: str) -> Any:  # for type checkers: the functions are set above
        raise AttributeError(f"the training kernels have no function {name}")


def _call(function: Any, *arguments: Any) -> Any:
    return function(*[a.data_ptr() if isinstance(a, torch.Tensor) else a for a in arguments])


def _check_memory(failed: int, function: Any, arguments: Any) -> int:
    if failed:
        raise MemoryError(f"{function.__name__} found no memory to work in")
    return failed


@functools.cache
def load(name: str = "avx512bf16") -> Kernels:
    """The kernels of the variant ``name``; built first where this machine has not done so (5 to 10 s).

    RuntimeError where that fails.
    """
    return Kernels(VARIANTS[name].build(), name)
