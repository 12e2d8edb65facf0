"""Where gradients go, and who waits for them.

Tested in tests/slm/kernels/test_fused.py.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def gradient_of(parameter: Tensor) -> tuple[Tensor, int]:
    """Where a parameter's gradient goes, and whether (1) something is there that it is added to."""
    if parameter.grad is None:
        parameter.grad = torch.empty_like(parameter)
        return parameter.grad, 0
    return parameter.grad, 1


def joined_gradient(parameters: Sequence[Tensor]) -> tuple[Tensor, int] | None:
    """``gradient_of`` for matrices of one width, as the rows of one tensor; None where they have gradients that do not
    lie together, or are frozen."""
    if not all(each.requires_grad for each in parameters):
        return None
    rows, width = sum(map(len, parameters)), parameters[0].shape[1]
    grads = [each.grad for each in parameters if each.grad is not None]
    if not grads:
        joined = parameters[0].new_empty(rows, width)
        for parameter, part in zip(parameters, joined.split([*map(len, parameters)]), strict=True):
            parameter.grad = part
        return joined, 0
    first, place = grads[0], grads[0].storage_offset()
    for parameter in parameters:
        grad = parameter.grad
        together = grad is not None and grad.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if grad is None or not together or grad.storage_offset() != place or not grad.is_contiguous():
            return None
        place += grad.numel()
    return first.as_strided((rows, width), (width, 1)), 1


def run_hooks(*parameters: Tensor) -> None:
    """These gradients hold all of this micro-batch: call the hooks that wait for that, as autograd would."""
    for parameter in parameters:
        for hook in (parameter._post_accumulate_grad_hooks or {}).values():
            hook(parameter)
