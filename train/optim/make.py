"""The optimizer of a run: which parameters get which update, and their learning rates.

Tested in tests/train/optim/test_make.py.
"""

from typing import Any, Literal

import torch
from torch import nn

from slm.kernels.native import Kernels
from slm.train.config import MUON_MOMENTUM, NS_STEPS, OptimConfig
from slm.train.optim.adafactor import Adafactor
from slm.train.optim.interface import Parameters
from slm.train.optim.muon import Muon
from slm.train.optim.plain import AdamW


def make_optimizer(
    model: Parameters,
    config: OptimConfig,
    precision: str = "f32",
    *,
    tied: bool | None = None,
    kernels: Kernels | None = None,
) -> torch.optim.Optimizer:
    """The optimizer that ``config`` names, over all parameters of ``model``.

    A group's ``lr_ratio`` is its learning rate as a share of ``config.lr``. ``precision``: in what Muon's products are
    computed, ``bf16`` or ``f32``. ``tied``: whether the embedding is the head, too; None: as ``model``'s names say.
    ``kernels``: what computes AdamW's updates, with torch's results; None: torch.
    """
    if config.name == "muon":
        if tied is None:
            tied = all(not name.startswith("lm_head") for name, _ in model.named_parameters())
        return _muon(model, config, precision, tied, kernels)
    if config.within_backward:
        return Adafactor(_decayed_and_kept(model, config))
    betas = (config.betas[0], config.betas[1])
    return AdamW(_decayed_and_kept(model, config), lr=config.lr, betas=betas, eps=config.eps, kernels=kernels)


def _decayed_and_kept(model: Parameters, config: OptimConfig) -> list[dict[str, Any]]:
    """Decay on the layers' matrices, none on norms and embeddings."""
    decayed: list[nn.Parameter] = []
    kept: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        matrix = parameter.ndim == 2 and "embed_tokens" not in name
        (decayed if matrix else kept).append(parameter)
    return [{"params": decayed, "weight_decay": config.weight_decay}, {"params": kept, "weight_decay": 0.0}]


def _muon(model: Parameters, config: OptimConfig, precision: str, tied: bool, kernels: Kernels | None) -> Muon:
    parts: dict[str, list[nn.Parameter]] = {"matrices": [], "embedding": [], "head": [], "gains": []}
    for name, parameter in model.named_parameters():
        parts[part_of(name, parameter)].append(parameter)
    matrices = {
        "kind": "muon",
        "params": parts["matrices"],
        "lr_ratio": 1.0,
        "weight_decay": config.weight_decay,
        "momentum": MUON_MOMENTUM,
        "momentum_steps": config.momentum_steps,
        "ns_steps": NS_STEPS,
        "second_moment": True,
    }
    tables: tuple[Literal["embedding", "head"], ...] = ("embedding", "head")
    widths = {part: parts[part][0].shape[1] for part in tables if parts[part]}
    rates: dict[str, float] = {part: config.table_rate(part, width, tied=tied) for part, width in widths.items()}
    decays: dict[str, float] = {part: config.table_decays(part, width, tied=tied) for part, width in widths.items()}
    rates["gains"] = config.gain_rate
    others: list[dict[str, Any]] = [
        {
            "kind": "adamw",
            "params": parts[part],
            "lr_ratio": rate / config.lr,
            "betas": config.betas,
            "eps": config.eps,
            "weight_decay": decays.get(part, 0.0),
        }
        for part, rate in rates.items()
        if parts[part]
    ]
    return Muon([matrices, *others], dtype=torch.bfloat16 if precision == "bf16" else torch.float32, kernels=kernels)


def part_of(name: str, parameter: nn.Parameter) -> str:
    """``matrices`` (of layers), ``embedding`` (a tied head too), ``head`` or ``gains`` (of norms, and the taps of short
    convolutions)."""
    if "embed_tokens" in name:
        return "embedding"
    if name.startswith("lm_head"):
        return "head"
    return "matrices" if parameter.ndim == 2 else "gains"
