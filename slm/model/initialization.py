"""The weights that a new model starts from.

Tested in tests/slm/model/test_transformer.py.
"""

import math

import torch
from torch import nn

from slm.model.config import InitConfig

CLASSIC = InitConfig()
_OUTPUTS = tuple(f"{name}.weight" for name in ("o_proj", "down_proj", "out_proj", "w2"))
"""The matrices that write to the residual stream."""
_QK_NORMS = tuple(f"{part}_{name}.weight" for part in "qk" for name in ("norm", "layernorm"))
_TAPS_STD = 0.3
"""Standard deviation of a short convolution's taps, about that of transformers' first weights. Those of a position
itself are 1 more, so that a new layer begins as a gate."""


@torch.no_grad()
def initialize(model: nn.Module, n_layers: int, init: InitConfig, *, norm_offset: float = 0.0) -> None:
    """Give every matrix of a model new random weights. The norms' gains are 1, those of queries and keys ``qk_gain``.

    A gain is a norm's weight plus ``norm_offset``. Biases are 0. Random numbers are torch's: set its seed before.
    """
    output_std = init.output_gain * 0.02 / math.sqrt(2 * n_layers)
    tied = not hasattr(model, "lm_head")
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            continue
        if name.endswith(".bias"):
            nn.init.zeros_(parameter)
        elif parameter.ndim < 2:
            gain = init.qk_gain if name.endswith(_QK_NORMS) else 1.0
            nn.init.constant_(parameter, gain - norm_offset)
        elif parameter.ndim == 3:
            _normal(parameter, _TAPS_STD)
            parameter[..., -1] += 1
        elif name.endswith(_OUTPUTS):
            _normal(parameter, output_std)
        elif "embed_tokens" in name:
            _normal(parameter, init.tied_std if tied else init.embed_std)
        elif name.startswith("lm_head"):
            _normal(parameter, init.head_std)
        else:
            _normal(parameter, init.matrix_std or 0.7 / math.sqrt(parameter.shape[1]))


def _normal(parameter: nn.Parameter, std: float) -> None:
    nn.init.normal_(parameter, std=std) if std else nn.init.zeros_(parameter)
