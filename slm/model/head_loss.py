"""Losses at the output head other than the mean cross-entropy, as what they make of the gradient of the logits.

A backward pass needs no more of a loss than its gradient in the logits. So a loss is given as a pass over them: each
target's cross-entropy times a weight, and where the targets are soft, a correction of that. Autograd and the kernels of
``slm/kernels`` both compute such a pass some rows at a time.

Shape suffixes: N positions, R of them at a time, D model width, V vocabulary.

Tested in tests/train/objective/test_preference.py, tests/train/objective/test_distillation.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from slm.model.cross_entropy import CHUNK_LOGITS, IGNORED, soft_cap_slope, soft_capped

Soften = Callable[[Tensor, Tensor, slice], None]


@dataclass(frozen=True)
class HeadPass:
    """One pass over the logits."""

    weights: Tensor | float
    """What the gradient of each target's cross-entropy counts: f32 [N], or one number for all scored targets."""
    soften: Soften | None = None
    """``soften(dlogits_RV, losses_R, rows)`` changes the gradient of some rows in place. It gets weight * (softmax -
    one-hot), zeros where not scored, and each target's cross-entropy, nats."""
    words: Tensor | None = None
    """The ids with logits, int64 [V], each once; targets are then places among them. None: all of the
    vocabulary."""
    offsets: Tensor | None = None
    """What every position's logits grow by before the softmax (and after any soft-cap), f32 [V]."""


class HeadLoss(Protocol):
    """A loss of the logits."""

    def over_logits(self, losses: Callable[[], Tensor]) -> HeadPass:
        """The pass that computes its gradient. ``losses`` computes each target's cross-entropy, f32 [N], nats, 0 where
        not scored: a further product with the head, so it is called only where the weights depend on it."""
        ...


def head_gradients(
    x_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, head: HeadLoss, cap: float | None = None
) -> tuple[Tensor, Tensor]:
    """The gradients of a loss in the final hidden states, like ``x_ND``, and in the head's weights, f32 [V, D].

    ``cap``: the logits are soft-capped at it. Products are in the precision of ``x_ND``, what is between them in f32.
    Nothing of it is seen by autograd.
    """
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        return _head_gradients(x_ND.detach(), weight_VD.detach(), targets_N, head, cap)


def _head_gradients(
    x_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, head: HeadLoss, cap: float | None
) -> tuple[Tensor, Tensor]:
    all_VD = weight_VD.to(x_ND.dtype)
    dx_ND, dweight_VD = torch.empty_like(x_ND), torch.zeros_like(weight_VD)
    rows = max(1, CHUNK_LOGITS // len(weight_VD))
    chunks = [slice(start, min(len(x_ND), start + rows)) for start in range(0, len(x_ND), rows)]

    def logits(part: slice, low_VD: Tensor) -> Tensor:
        return soft_capped(F.linear(x_ND[part], low_VD).float(), cap)

    def losses_of(logits_RV: Tensor, part: slice) -> Tensor:
        return F.cross_entropy(logits_RV, targets_N[part], ignore_index=IGNORED, reduction="none")

    def losses() -> Tensor:
        return torch.cat([losses_of(logits(part, all_VD), part) for part in chunks])

    asked = head.over_logits(losses)
    low_VD = all_VD if asked.words is None else all_VD[asked.words]
    for part in chunks:
        logits_RV = logits(part, low_VD)
        slopes_RV = soft_cap_slope(logits_RV, cap) if cap else None
        if asked.offsets is not None:
            logits_RV += asked.offsets
        losses_R = losses_of(logits_RV, part)
        weights = asked.weights[part] if isinstance(asked.weights, Tensor) else asked.weights
        dlogits_RV = softmax_gradient(logits_RV, targets_N[part], weights)
        if asked.soften:
            asked.soften(dlogits_RV, losses_R, part)
        if slopes_RV is not None:
            dlogits_RV *= slopes_RV
        low_RV = dlogits_RV.to(x_ND.dtype)
        dx_ND[part] = low_RV @ low_VD
        gradient_VD = low_RV.T @ x_ND[part]
        if asked.words is None:
            dweight_VD += gradient_VD
        else:
            dweight_VD.index_add_(0, asked.words, gradient_VD.to(dweight_VD.dtype))
    return dx_ND, dweight_VD


def softmax_gradient(logits_RV: Tensor, targets_R: Tensor, weights: Tensor | float) -> Tensor:
    """``weights`` (f32 [R], or one number) times (softmax - one-hot), zeros where not scored."""
    gradient_RV = logits_RV.softmax(-1)
    gradient_RV[torch.arange(len(targets_R)), targets_R.clamp(min=0)] -= 1
    return gradient_RV.mul_(((targets_R != IGNORED) * weights)[:, None])
