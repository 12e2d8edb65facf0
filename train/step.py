"""One optimizer step: forward and backward over the micro-batches, clip, update.

Shape suffixes: B sequences of a micro-batch, T positions.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch

from slm.model.transformer import LanguageModel
from train.backend import Backend
from train.distributed.gradient_sync import NO_SYNC, GradientSync
from train.guards import NonFiniteError
from train.optim import Optimizer


@dataclass(frozen=True)
class StepResult:
    """What a step did."""

    loss: float
    """Mean cross-entropy over the step's tokens, nats per token."""
    grad_norm: float
    """Global L2 norm of the gradient before clipping."""
    tokens: int
    data_seconds: float
    """Time spent waiting for batches."""
    update_seconds: float
    """Time spent on the gradient's norm and the optimizer."""


def split(block_BT1: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets, int64 [B, T] each, of blocks [B, T + 1]."""
    block = torch.from_numpy(block_BT1.astype(np.int64))
    return block[:, :-1], block[:, 1:]


def train_step(
    model: LanguageModel,
    optimizer: Optimizer,
    batches: Iterator[np.ndarray],
    *,
    grad_accum: int,
    grad_clip: float,
    lr: float,
    backend: Backend,
    sync: GradientSync = NO_SYNC,
) -> StepResult:
    """Take ``grad_accum`` micro-batches [B, T + 1] from ``batches`` and update ``model`` once.

    With several ranks each takes its share of them from its own ``batches``, and the gradient is the sum over all.
    Raises UserError, before any weight changes, where the loss or the gradient is not finite.
    """
    loss_sum, tokens, waited = 0.0, 0, 0.0
    micro_batches = grad_accum // sync.size
    for index in range(micro_batches):
        start = perf_counter()
        ids_BT, targets_BT = split(next(batches))
        waited += perf_counter() - start
        if index == micro_batches - 1:
            sync.begin_last_backward()
        loss_sum += backend.gradients(ids_BT, targets_BT, 1 / grad_accum)
        tokens += ids_BT.numel()
    loss_sum, tokens = sync.finish(loss_sum), tokens * sync.size
    start = perf_counter()
    parameters = list(model.parameters())
    norm = torch.nn.utils.clip_grad_norm_(parameters, grad_clip if grad_clip > 0 else float("inf"), foreach=True)
    mean_loss, grad_norm = loss_sum / grad_accum, norm.item()
    if not (np.isfinite(mean_loss) and np.isfinite(grad_norm)):
        raise NonFiniteError(
            f"the loss is {mean_loss} and the gradient's norm {grad_norm}: stopped before the update; "
            "resume from the last checkpoint with a lower optim.lr, or train.precision=f32"
        )
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    backend.weights_changed()
    optimizer.zero_grad(set_to_none=True)
    return StepResult(
        loss=mean_loss,
        grad_norm=grad_norm,
        tokens=tokens,
        data_seconds=waited,
        update_seconds=perf_counter() - start,
    )
