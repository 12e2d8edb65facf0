"""AdamW over two groups of parameters, and its state by parameter name.

Tested in tests/train/test_step.py.
"""

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from data.errors import UserError
from train.config import OptimConfig

STATE_KEYS = ("step", "exp_avg", "exp_avg_sq")
"""AdamW's state of one parameter."""


class Parameters(Protocol):
    """A model, or the part of one that an optimizer updates."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...


class Optimizer(Protocol):
    """What training needs of an optimizer, as torch's own have it."""

    @property
    def param_groups(self) -> list[dict[str, Any]]: ...
    @property
    def state(self) -> Any: ...
    def step(self) -> Any: ...
    def zero_grad(self, set_to_none: bool = True) -> None: ...
    def register_step_pre_hook(self, hook: Any) -> Any: ...


def make_optimizer(model: Parameters, config: OptimConfig) -> torch.optim.AdamW:
    """Fused AdamW (Loshchilov and Hutter 2019): decay on the layers' matrices, none on norms and embeddings."""
    decayed: list[nn.Parameter] = []
    kept: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        matrix = parameter.ndim >= 2 and "embed_tokens" not in name
        (decayed if matrix else kept).append(parameter)
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": kept, "weight_decay": 0.0}]
    betas = (config.betas[0], config.betas[1])
    return torch.optim.AdamW(groups, lr=config.lr, betas=betas, eps=config.eps, fused=True)


def state_tensors(model: Parameters, optimizer: Optimizer) -> dict[str, Tensor]:
    """The optimizer's moments and step counts as ``<parameter name>.<key>``."""
    tensors = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state[parameter].items():
            tensors[f"{name}.{key}"] = value
    return tensors


def load_state_tensors(model: Parameters, optimizer: Optimizer, tensors: dict[str, Tensor]) -> None:
    """Put back what ``state_tensors`` returned. A parameter without entries has not been updated yet.

    UserError where only a part of a parameter's state is there: the checkpoint is another optimizer's.
    """
    for name, parameter in model.named_parameters():
        found = {key: tensors[f"{name}.{key}"].clone() for key in STATE_KEYS if f"{name}.{key}" in tensors}
        if found and set(found) != set(STATE_KEYS):
            raise UserError(
                f"the checkpoint holds only {', '.join(found)} of the state of {name}, AdamW needs "
                f"{', '.join(STATE_KEYS)}: resume from another checkpoint (resume=DIR), or start anew (resume=never)"
            )
        if found:
            optimizer.state[parameter] = found
