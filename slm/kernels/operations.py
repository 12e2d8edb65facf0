"""Kernels that need buffers beyond their operands, called on a workspace: norms, and gradients of weights.

Shape suffixes: N positions, D the norm's width.

Tested in tests/slm/kernels/test_fused.py.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from slm.kernels.gradients import gradient_of, joined_gradient, run_hooks
from slm.kernels.native import Kernels
from slm.kernels.workspace import Workspace
from slm.model.layers.layer import RMSNorm


def norm(work: Workspace, layer: RMSNorm | None, x_ND: Tensor, inverse_rms_N: Tensor | None) -> Tensor:
    """The normed x [N, D], which the next norm writes over; ``inverse_rms_N`` is written where it is given. Without a
    ``layer`` x itself."""
    if layer is None:
        return x_ND
    h_ND = work.buffer("h", *x_ND.shape)
    work.kernels.slm_rmsnorm(x_ND, *x_ND.shape, layer.gain, layer.eps, h_ND, inverse_rms_N)
    return h_ND


def norm_backward(
    work: Workspace,
    layer: RMSNorm,
    dh_ND: Tensor,
    x_ND: Tensor,
    inverse_rms_N: Tensor,
    residual_ND: Tensor | None,
    dx_ND: Tensor,
) -> None:
    """Write the gradient of x, plus ``residual_ND``, to ``dx_ND``, and add that of the gain unless it is frozen.

    ``dh_ND`` is used up where the norm has a scale.
    """
    weight, gain = layer.weight, layer.weight + layer.offset
    if layer.scale != 1.0:
        dh_ND *= layer.scale
    if weight.requires_grad:
        grad, add = gradient_of(weight)
    else:
        grad, add = work.room("norm", *weight.shape, dtype=torch.float32), 0
    size = work.kernels.slm_rmsnorm_backward_scratch(x_ND.shape[1])
    partial = work.room("partial", size, dtype=torch.float32)
    work.kernels.slm_rmsnorm_backward(
        dh_ND, x_ND, inverse_rms_N, gain, *x_ND.shape, residual_ND, dx_ND, grad, add, partial
    )
    run_hooks(weight)


def add_weight_gradient(
    work: Workspace, name: str, dy: Tensor, x: Tensor, weight: Tensor, kernels: Kernels | None = None
) -> None:
    """Add dy^T x to the weight's gradient, unless it is frozen; dy may be some columns of a wider tensor.

    Weights of one ``name`` share their scratch memory. ``kernels``: those of the layers where none are given.
    """
    if weight.requires_grad:
        add_product(work, name, dy, x, *gradient_of(weight), kernels or work.kernels)


def add_weight_gradients(work: Workspace, name: str, dy: Tensor, x: Tensor, weights: Sequence[Tensor]) -> None:
    """The same for layers with one input. Their outputs are columns of dy one after another.

    One product, which lays ``x`` out once, where none is frozen and their gradients lie together.
    """
    if joined := joined_gradient(weights):
        add_product(work, name, dy, x, *joined, work.kernels)
        return
    column = 0
    for weight in weights:
        add_weight_gradient(work, f"{name}{column}", dy[:, column:], x, weight)
        column += len(weight)


def add_product(work: Workspace, name: str, dy: Tensor, x: Tensor, grad: Tensor, add: int, kernels: Kernels) -> None:
    """Write dy^T x to ``grad`` [outputs, inputs], f32, or add it (``add`` = 1)."""
    (n, k), N = grad.shape, x.shape[0]
    size = kernels.slm_weight_gradient_scratch(N, n, k)
    scratch = work.room(f"packed_{name}", size, dtype=torch.int32)
    kernels.slm_weight_gradient(dy, dy.stride(0), x, x.stride(0), N, n, k, grad, add, scratch)


def add_bias_gradient(work: Workspace, dy: Tensor, bias: Tensor) -> None:
    """Add the sum of dy's rows to the bias's gradient; dy may be some columns of a wider tensor."""
    grad, add = gradient_of(bias)
    work.kernels.slm_bias_gradient(dy, dy.stride(0), len(dy), len(bias), grad, add)
    run_hooks(bias)
