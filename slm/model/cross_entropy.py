"""The output head with its cross-entropy: plainly, or a chunk of positions at a time without ever holding all logits.

With 50,000 tokens of vocabulary the logits of a micro-batch are the largest thing in a training step. The chunked
version makes the logits of some positions, turns them into their gradient and uses them up before the next chunk.
Forward and backward of the head are then one pass, and the backward pass only scales what is already there.

Shape suffixes: B batch, T positions of a sequence, N positions of all, D model width, V vocabulary, C positions of a
chunk.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORED = -100
"""A target that is not scored (torch's own convention)."""
CHUNK_LOGITS = 16_000_000
"""Logits held at once."""
ChunkGradients = Callable[[Tensor, Tensor, Tensor, Tensor, float | None], tuple[Tensor, Tensor]]


def soft_capped(x: Tensor, cap: float | None) -> Tensor:
    """``x`` soft-capped (Gemma 2): cap * tanh(x / cap), in its own precision; ``cap`` of None or 0: ``x`` itself."""
    return torch.tanh(x / cap) * cap if cap else x


def soft_cap_slope(capped: Tensor, cap: float) -> Tensor:
    """The derivative of soft-capped values in those before the cap, from the capped ones."""
    return 1 - (capped / cap).square()


def cross_entropy(x_BTD: Tensor, weight_VD: Tensor, targets_BT: Tensor, cap: float | None = None) -> Tensor:
    """Mean cross-entropy of ``softmax(x @ weight.T)``, nats per scored target, f32: all logits at once. ``cap``: they
    are soft-capped at it."""
    logits_NV = F.linear(x_BTD, weight_VD).flatten(0, 1)
    return F.cross_entropy(soft_capped(logits_NV.float(), cap), targets_BT.flatten(), ignore_index=IGNORED)


def chunk_gradients(
    x_CD: Tensor, weight_VD: Tensor, targets_C: Tensor, scale: Tensor, cap: float | None = None
) -> tuple[Tensor, Tensor]:
    """The chunk's summed loss (f32), and ``scale`` times its gradient in the logits [C, V] in x's own precision."""
    logits_CV = F.linear(x_CD, weight_VD)
    logits_CV = soft_capped(logits_CV.to(torch.promote_types(logits_CV.dtype, torch.float32)), cap)
    scored_C = targets_C != IGNORED
    index_C1 = torch.where(scored_C, targets_C, 0)[:, None]
    lse_C1 = logits_CV.logsumexp(-1, keepdim=True)
    nll_C1 = torch.where(scored_C[:, None], lse_C1 - logits_CV.gather(1, index_C1), 0.0)
    keep_C1 = scored_C[:, None] * scale
    probabilities_CV = (logits_CV - lse_C1).exp() * keep_C1
    is_target_CV = torch.arange(weight_VD.shape[0])[None, :] == index_C1
    gradient_CV = torch.where(is_target_CV, probabilities_CV - keep_C1, probabilities_CV)
    if cap:
        gradient_CV = gradient_CV * soft_cap_slope(logits_CV, cap)
    return nll_C1.sum(), gradient_CV.to(x_CD.dtype)


class LinearCrossEntropy(torch.autograd.Function):
    """Mean cross-entropy of ``softmax(x @ weight.T)`` in chunks; gradients are made in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        x_ND: Tensor,
        weight_VD: Tensor,
        targets_N: Tensor,
        chunk_gradients: ChunkGradients,
        cap: float | None,
    ) -> Tensor:
        n_scored = (targets_N != IGNORED).sum().clamp(min=1)
        scale = n_scored.to(torch.promote_types(x_ND.dtype, torch.float32)).reciprocal()
        low_VD = weight_VD.to(x_ND.dtype)
        loss = torch.zeros((), dtype=scale.dtype)
        dx_ND = torch.empty_like(x_ND)
        dweight_VD = torch.zeros_like(weight_VD)
        rows = max(1, CHUNK_LOGITS // weight_VD.shape[0])
        for start in range(0, len(x_ND), rows):
            chunk = slice(start, start + rows)
            nll, dlogits_CV = chunk_gradients(x_ND[chunk], low_VD, targets_N[chunk], scale, cap)
            loss += nll
            torch.mm(dlogits_CV, low_VD, out=dx_ND[chunk])
            dweight_VD += dlogits_CV.T @ x_ND[chunk]
        ctx.save_for_backward(dx_ND, dweight_VD)
        return loss * scale

    @staticmethod
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        dx_ND, dweight_VD = ctx.saved_tensors
        return dx_ND * dloss.to(dx_ND.dtype), dweight_VD * dloss.to(dweight_VD.dtype), None, None, None


def linear_cross_entropy(
    x_ND: Tensor,
    weight_VD: Tensor,
    targets_N: Tensor,
    chunk_gradients: ChunkGradients = chunk_gradients,
    cap: float | None = None,
) -> Tensor:
    """Mean cross-entropy, nats per scored target, f32: ``x_ND`` in the precision to compute in, ``weight_VD`` any.

    ``chunk_gradients`` is this module's, or its compiled form. ``cap``: the logits are soft-capped at it.
    """
    return LinearCrossEntropy.apply(x_ND, weight_VD, targets_N, chunk_gradients, cap)
