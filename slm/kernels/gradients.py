"""Where gradients go, and who waits for them.

Tested in tests/slm/kernels/test_fused.py.
"""

import torch
from torch import Tensor


def gradient_of(parameter: Tensor) -> tuple[Tensor, int]:
    """Where a parameter's gradient goes, and whether (1) something is there that it is added to."""
    if parameter.grad is None:
        parameter.grad = torch.empty_like(parameter)
        return parameter.grad, 0
    return parameter.grad, 1


def run_hooks(*parameters: Tensor) -> None:
    """These gradients hold all of this micro-batch: call the hooks that wait for that, as autograd would."""
    for parameter in parameters:
        for hook in (parameter._post_accumulate_grad_hooks or {}).values():
            hook(parameter)
