"""One optimizer step: forward and backward over the micro-batches, clip, update.

Shape suffixes: B sequences of a micro-batch, T positions.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch

from data.stream import marks
from slm.model.cross_entropy import IGNORED
from train.backend import Backend, count_scored
from train.distributed.gradient_sync import NO_SYNC, GradientSync
from train.guards import NonFiniteError
from train.optim.interface import Optimizer, Parameters


@dataclass(frozen=True)
class StepResult:
    """What a step did."""

    loss: float
    """Mean cross-entropy over all scored tokens of the step, nats per token."""
    grad_norm: float
    """Global L2 norm of the gradient before clipping."""
    tokens: int
    """Positions of the step's sequences."""
    scored: int
    """Targets among them that the loss counts: all of a plain text's, the assistant's turns of conversations."""
    data_seconds: float
    """Time spent waiting for batches."""
    update_seconds: float
    """Time spent on the gradient's norm and the optimizer."""


class Batch(NamedTuple):
    """A micro-batch as the model takes it."""

    ids: torch.Tensor
    """int64 [B, T]."""
    targets: torch.Tensor
    """int64 [B, T]; -100 where a target is not scored."""
    starts: torch.Tensor | None
    """int32 [B, T]: where each position's conversation begins; None for plain text."""


def split(block_BT1: np.ndarray) -> Batch:
    """Inputs, targets and the beginnings of conversations of blocks [B, T + 1]."""
    ids_BT1 = marks.ids_of(block_BT1).astype(np.int64)
    targets_BT = np.where(marks.is_scored(block_BT1[:, 1:]), ids_BT1[:, 1:], IGNORED)
    starts_BT = marks.conversation_starts(block_BT1[:, :-1])
    return Batch(
        torch.from_numpy(ids_BT1)[:, :-1],
        torch.from_numpy(targets_BT),
        None if starts_BT is None else torch.from_numpy(starts_BT),
    )


def train_step(
    model: Parameters,
    optimizer: Optimizer,
    batches: Iterator[np.ndarray],
    *,
    grad_accum: int,
    grad_clip: float,
    lr: float,
    backend: Backend,
    sync: GradientSync = NO_SYNC,
) -> StepResult:
    """Take ``grad_accum`` micro-batches [B, T + 1] from ``batches`` and update ``model`` once: a model's
    parameters, or those of an adapter.

    With several ranks each takes its share of them from its own ``batches``. The loss is the mean over the scored
    tokens of the whole step: each counts the same, in whichever micro-batch and rank it is. Raises UserError, before
    any weight changes, where the loss or the gradient is not finite.
    """
    loss_sum, scored, tokens, waited = 0.0, 0, 0, 0.0
    micro_batches = grad_accum // sync.size
    for index in range(micro_batches):
        start = perf_counter()
        ids_BT, targets_BT, starts_BT = split(next(batches))
        waited += perf_counter() - start
        if index == micro_batches - 1:
            sync.begin_last_backward()
        # How many tokens the whole step scores is known after its last micro-batch only: divide by all positions here.
        loss_sum += backend.gradients(ids_BT, targets_BT, 1 / (ids_BT.numel() * grad_accum), starts_BT)
        scored += count_scored(targets_BT)
        tokens += ids_BT.numel()
    loss_sum, scored = sync.finish(loss_sum, scored)
    tokens *= sync.size
    start = perf_counter()
    parameters = list(model.parameters())
    if 0 < scored < tokens:
        torch._foreach_mul_([each.grad for each in parameters if each.grad is not None], tokens / scored)
    norm = torch.nn.utils.clip_grad_norm_(parameters, grad_clip if grad_clip > 0 else float("inf"), foreach=True)
    mean_loss, grad_norm = loss_sum / max(1, scored), norm.item()
    if not (np.isfinite(mean_loss) and np.isfinite(grad_norm)):
        raise NonFiniteError(
            f"the loss is {mean_loss} and the gradient's norm {grad_norm}: stopped before the update; "
            "resume from the last checkpoint with a lower optim.lr, or train.precision=f32"
        )
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_ratio", 1.0)
    optimizer.step()
    backend.weights_changed()
    optimizer.zero_grad(set_to_none=True)
    return StepResult(
        loss=mean_loss,
        grad_norm=grad_norm,
        tokens=tokens,
        scored=scored,
        data_seconds=waited,
        update_seconds=perf_counter() - start,
    )
