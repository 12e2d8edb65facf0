"""An optimizer's state by parameter name, as checkpoints hold it."""

import torch
from torch import Tensor, nn

from slm.data.errors import UserError
from slm.train.optim.adafactor import Adafactor
from slm.train.optim.interface import Optimizer, Parameters
from slm.train.optim.muon import Muon

ADAMW_KEYS = ("step", "exp_avg", "exp_avg_sq")
"""AdamW's state of one parameter."""


def state_tensors(model: Parameters, optimizer: Optimizer) -> dict[str, Tensor]:
    """The optimizer's moments and step counts as ``<parameter name>.<key>``."""
    tensors = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state[parameter].items():
            tensors[f"{name}.{key}"] = value
    return tensors


def load_state_tensors(model: Parameters, optimizer: Optimizer, tensors: dict[str, Tensor]) -> None:
    """Put back what ``state_tensors`` returned. A parameter without entries has not been updated yet.

    UserError where a parameter's state has other keys: the checkpoint is another optimizer's.
    """
    for name, parameter in model.named_parameters():
        prefix = f"{name}."
        found = {key[len(prefix) :]: value.clone() for key, value in tensors.items() if key.startswith(prefix)}
        needed = state_keys(optimizer, parameter)
        if found and set(found) != set(needed):
            raise UserError(
                f"the checkpoint holds {', '.join(found)} of the state of {name}, {optimizer_name(optimizer)} "
                f"needs {', '.join(needed)}: resume from another checkpoint (resume=DIR), or start anew (resume=never)"
            )
        if found:
            optimizer.state[parameter] = found


def state_keys(optimizer: Optimizer, parameter: nn.Parameter) -> tuple[str, ...]:
    """The names of a parameter's state in this optimizer."""
    inner = getattr(optimizer, "inner", optimizer)  # ZeRO-1 holds the optimizer of its shard
    return inner.state_keys(parameter) if isinstance(inner, Adafactor | Muon) else ADAMW_KEYS


def optimizer_name(optimizer: Optimizer) -> str:
    inner = getattr(optimizer, "inner", optimizer)
    return next((kind.__name__ for kind in (Adafactor, Muon, torch.optim.AdamW) if isinstance(inner, kind)), str(inner))
