"""One optimizer step: forward and backward over the micro-batches, clip, update.

Shape suffixes: B sequences of a micro-batch, T positions.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
import torch

from slm.train.backend import Backend, count_scored
from slm.train.distributed.gradient_sync import NO_SYNC, GradientSync
from slm.train.guards import NonFiniteError
from slm.train.objective.objective import CROSS_ENTROPY, Objective
from slm.train.optim.adafactor import Adafactor
from slm.train.optim.fused import gradient_norm, update
from slm.train.optim.interface import Optimizer, Parameters


@dataclass(frozen=True)
class StepResult:
    """What a step did."""

    loss: float
    """Mean over what is counted: the cross-entropy of all scored tokens of the step, nats per token, or another
    objective's loss."""
    grad_norm: float
    """Global L2 norm of the gradient before clipping."""
    tokens: int
    """Positions of the step's sequences."""
    scored: int
    """What the loss counts: all targets of a plain text, the assistant's turns of conversations, or pairs."""
    data_seconds: float
    """Time spent waiting for batches."""
    update_seconds: float
    """Time spent on the gradient's norm and the optimizer."""
    sums: dict[str, float] = field(default_factory=dict)
    """The objective's further figures, summed over what is counted."""


def train_step(
    model: Parameters,
    optimizer: Optimizer,
    batches: Iterator[np.ndarray],
    *,
    grad_accum: int,
    grad_clip: float,
    lr: float,
    backend: Backend,
    objective: Objective = CROSS_ENTROPY,
    sync: GradientSync = NO_SYNC,
    progress: Callable[[float], None] = lambda share: None,
) -> StepResult:
    """Take ``grad_accum`` micro-batches [B, T + 1] from ``batches`` and update ``model`` once: a model's
    parameters, or those of an adapter.

    With several ranks each takes its share of them from its own ``batches``. The loss is the mean over the scored
    tokens (or whatever ``objective`` counts) of the whole step: each counts the same, in whichever micro-batch and rank
    it is. ``progress`` is told the share that is done. Raises UserError where the loss or the gradient is not finite,
    before any weight changes; Adafactor has then changed those with finite gradients.
    """
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_ratio", 1.0)
    within = optimizer if isinstance(optimizer, Adafactor) else None
    if within:
        within.step()
    loss_sum, scored, tokens, waited = 0.0, 0, 0, 0.0
    sums = dict.fromkeys(objective.figures, 0.0)
    micro_batches = grad_accum // sync.size
    for index in range(micro_batches):
        start = perf_counter()
        batch = objective.split(next(batches))
        waited += perf_counter() - start
        if index == micro_batches - 1:
            sync.begin_last_backward()
        backend.on_progress(lambda share, index=index: progress((index + share) / micro_batches))  # type: ignore[misc]
        # How much the whole step counts is known after its last micro-batch only: divide by all positions here.
        counted = max(1, count_scored(batch.targets)) if within else batch.positions * grad_accum
        part = objective.gradients(backend, batch, 1 / counted)
        loss_sum += part.loss
        scored += part.count
        sums = {name: total + part.sums[name] for name, total in sums.items()}
        tokens += batch.positions
        progress((index + 1) / micro_batches)
    loss_sum, scored, *summed = sync.finish(loss_sum, scored, *sums.values())
    tokens *= sync.size
    start = perf_counter()
    mean_loss = loss_sum / max(1, scored)
    if within:
        grad_norm = within.end()
        _check_finite(mean_loss, grad_norm)
    else:
        grad_norm = _update(
            optimizer, model, mean_loss, mean=tokens / scored if 0 < scored < tokens else 1.0, grad_clip=grad_clip
        )
    backend.weights_changed()
    optimizer.zero_grad(set_to_none=True)
    return StepResult(
        loss=mean_loss,
        grad_norm=grad_norm,
        tokens=tokens,
        scored=scored,
        data_seconds=waited,
        update_seconds=perf_counter() - start,
        sums=dict(zip(sums, summed, strict=True)),
    )


def _update(optimizer: Optimizer, model: Parameters, mean_loss: float, *, mean: float, grad_clip: float) -> float:
    """Multiply the gradients by ``mean``, clip them and update the weights. Returns their norm before clipping."""
    gradients = [each.grad for each in model.parameters() if each.grad is not None]
    # All gradients are multiplied by two numbers, which the update does on its way.
    norm, clip = gradient_norm(optimizer, gradients) * mean, 1.0
    if grad_clip > 0:
        clip = torch.clamp(grad_clip / (norm + 1e-6), max=1.0).item()
    grad_norm = norm.item()
    _check_finite(mean_loss, grad_norm)
    update(optimizer, gradients, (mean, clip))
    return grad_norm


def _check_finite(loss: float, grad_norm: float) -> None:
    if not (np.isfinite(loss) and np.isfinite(grad_norm)):
        raise NonFiniteError(
            f"the loss is {loss} and the gradient's norm {grad_norm}: stopped before the update; "
            "resume from the last checkpoint with a lower optim.lr, or train.precision=f32"
        )
