"""AdamW in one pass over weights, gradients and moments, and clipping that needs no further pass.

Clipping, and the loss's mean over the scored tokens, multiply all gradients by a number. An update reads the gradients
anyway: it multiplies them on its way. Where the training kernels run they compute both the update and the norm before
it; elsewhere torch does.

Tested in tests/train/optim/test_fused.py.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from slm.kernels.native import Kernels
from slm.train.optim.interface import Optimizer

NO_FACTORS = (1.0, 1.0)
State = dict[str, Tensor]


def gradient_norm(optimizer: Optimizer, gradients: Sequence[Tensor]) -> Tensor:
    """The L2 norm of all ``gradients`` together, f32, by the optimizer's kernels where it has some: theirs does not
    depend on the number of threads."""
    kernels: Kernels | None = getattr(_own(optimizer), "kernels", None)
    if kernels is None or not all(map(_plain, gradients)):
        return torch.nn.utils.get_total_norm(gradients, foreach=True)
    places = torch.tensor([[each.data_ptr(), each.numel()] for each in gradients], dtype=torch.int64)
    return torch.tensor(math.sqrt(kernels.slm_sum_of_squares(places, len(places))))


def update(optimizer: Optimizer, gradients: Sequence[Tensor], factors: tuple[float, float]) -> None:
    """An optimizer's step with gradients that are first multiplied by both ``factors``, one after the other.

    Ours do so on their way; ``gradients`` are then left as they are.
    """
    own = _own(optimizer)
    if hasattr(own, "factors"):
        own.factors = factors
        try:
            optimizer.step()
        finally:
            own.factors = NO_FACTORS
        return
    scale(gradients, factors)
    optimizer.step()


def _own(optimizer: Any) -> Any:
    return getattr(optimizer, "inner", optimizer)  # ZeRO-1 holds the optimizer of its shard


def scale(gradients: Sequence[Tensor], factors: tuple[float, float]) -> None:
    """Multiply ``gradients`` in place. A factor of 1 takes no time."""
    for factor in factors:
        if factor != 1:
            torch._foreach_mul_(list(gradients), factor)


def adamw_step(
    parameters: Sequence[Tensor],
    states: Sequence[State],
    *,
    kernels: Kernels | None,
    factors: tuple[float, float],
    betas: tuple[float, float],
    lr: float,
    eps: float,
    weight_decay: float,
) -> None:
    """Update ``parameters`` by their gradients times ``factors``. Weights and ``states`` (``step``, ``exp_avg`` and
    ``exp_avg_sq``) are the same to the bit with the kernels and with torch.
    """
    by_step: dict[float, list[tuple[Tensor, Tensor, State]]] = defaultdict(list)
    rest: list[tuple[Tensor, Tensor, State]] = []
    for parameter, state in zip(parameters, states, strict=True):
        gradient = parameter.grad
        assert gradient is not None
        tensors = (parameter, gradient, state["exp_avg"], state["exp_avg_sq"])
        if kernels is not None and all(map(_plain, tensors)):
            state["step"] += 1
            by_step[state["step"].item()].append((parameter, gradient, state))
        else:
            rest.append((parameter, gradient, state))
    beta1, beta2 = betas
    for step, group in by_step.items():
        assert kernels is not None
        correction = 1 - beta2**step
        numbers = torch.tensor(
            [
                *factors,
                1 - lr * weight_decay,
                1 - beta1,
                beta2,
                1 - beta2,
                math.sqrt(correction),
                eps,
                -lr / (1 - beta1**step),
            ],
            dtype=torch.float32,
        )
        places = torch.tensor(
            [
                [p.data_ptr(), g.data_ptr(), s["exp_avg"].data_ptr(), s["exp_avg_sq"].data_ptr(), p.numel()]
                for p, g, s in group
            ],
            dtype=torch.int64,
        )
        kernels.slm_adamw(places, len(places), numbers)
        torch.autograd.graph.increment_version([p for p, _, _ in group])
    if rest:
        scale([gradient for _, gradient, _ in rest], factors)
        adamw(
            [parameter for parameter, _, _ in rest],
            [gradient for _, gradient, _ in rest],
            [state["exp_avg"] for _, _, state in rest],
            [state["exp_avg_sq"] for _, _, state in rest],
            [],
            [state["step"] for _, _, state in rest],
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=lr,
            weight_decay=weight_decay,
            eps=eps,
            maximize=False,
        )


def _plain(tensor: Tensor) -> bool:
    """Whether a kernel may read it as this many values of f32."""
    return tensor.dtype == torch.float32 and tensor.is_contiguous()


def new_state(parameter: Tensor) -> State:
    """AdamW's before the first update."""
    mean, square = (torch.zeros_like(parameter.detach()) for _ in range(2))
    return {"step": torch.zeros(()), "exp_avg": mean, "exp_avg_sq": square}
