"""AdamW over two groups of parameters, and its state by parameter name."""

import torch
from torch import Tensor

from slm.model.transformer import LanguageModel
from train.config import OptimConfig


def make_optimizer(model: LanguageModel, config: OptimConfig) -> torch.optim.AdamW:
    """Fused AdamW (Loshchilov and Hutter 2019): decay on the layers' matrices, none on norms and embeddings."""
    decayed, kept = [], []
    for name, parameter in model.named_parameters():
        matrix = parameter.ndim >= 2 and "embed_tokens" not in name
        (decayed if matrix else kept).append(parameter)
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": kept, "weight_decay": 0.0}]
    betas = (config.betas[0], config.betas[1])
    return torch.optim.AdamW(groups, lr=config.lr, betas=betas, eps=config.eps, fused=True)


def state_tensors(model: LanguageModel, optimizer: torch.optim.AdamW) -> dict[str, Tensor]:
    """The optimizer's moments and step counts as ``<parameter name>.<moment>``."""
    tensors = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state[parameter].items():
            tensors[f"{name}.{key}"] = value
    return tensors


def load_state_tensors(model: LanguageModel, optimizer: torch.optim.AdamW, tensors: dict[str, Tensor]) -> None:
    """Put back what :func:``state_tensors`` gave; a parameter without entries has not been stepped yet."""
    for name, parameter in model.named_parameters():
        keys = ("step", "exp_avg", "exp_avg_sq")
        found = {key: tensors[f"{name}.{key}"].clone() for key in keys if f"{name}.{key}" in tensors}
        if found:
            assert set(found) == set(keys), f"{name} has only {sorted(found)} of its optimizer state"
            optimizer.state[parameter] = found
