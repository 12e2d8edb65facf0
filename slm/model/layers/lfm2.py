"""LFM2's layers (Liquid AI 2025): some have a gated short convolution in place of attention.

Their parts have transformers' names, so that a state dict is a checkpoint, and answer to a Llama layer's names, too.

Shape suffixes: B batch, T positions, D model width, W taps of the convolution.

Tested in tests/slm/model/test_architectures.py.
"""

from typing import Any

import torch
from torch import Tensor, nn

from slm.model.config import ModelConfig
from slm.model.layers.layer import MLP, Attention, Layer, LayerCache, RMSNorm


def _part(name: str) -> Any:
    """The part ``name`` of a module, under the name that a Llama has for it."""
    return property(lambda self: self._modules[name])


def _rename(module: nn.Module, **names: str) -> None:
    """Give parts of a module other names."""
    parts = {names.get(name, name): part for name, part in module._modules.items()}
    module._modules.clear()
    module._modules.update(parts)


class Lfm2Attention(Attention):
    """Attention with norms of queries and keys."""

    o_proj, q_norm, k_norm = _part("out_proj"), _part("q_layernorm"), _part("k_layernorm")

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        _rename(self, o_proj="out_proj", q_norm="q_layernorm", k_norm="k_layernorm")


class ShortConv(nn.Module):
    """out(c * convolution(b * x)) with b, c and x from one projection: each channel is a weighted sum of its W newest
    values."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.in_proj = nn.Linear(config.d_model, 3 * config.d_model, bias=False)
        self.conv = nn.Conv1d(config.d_model, config.d_model, config.conv_width, groups=config.d_model, bias=False)
        self.out_proj = nn.Linear(config.d_model, config.d_model, bias=False)

    @property
    def taps_WD(self) -> Tensor:
        """The weight of each value, the oldest first."""
        return self.conv.weight[:, 0].T

    def forward(
        self,
        x_BTD: Tensor,
        cos_TE: Tensor,
        sin_TE: Tensor,
        cache: LayerCache | None = None,
        starts_BT: Tensor | None = None,
    ) -> Tensor:
        """As attention is called; cosines and sines are not needed here."""
        b_BTD, c_BTD, x_BTD = self.in_proj(x_BTD).chunk(3, dim=-1)
        u_BTD, taps_WD = b_BTD * x_BTD, self.taps_WD.to(x_BTD.dtype)
        T, before, past = u_BTD.shape[1], len(taps_WD) - 1, len(cache) if cache is not None else 0
        if cache is not None:
            joined_BSD = cache.with_newest(u_BTD, before)
        else:
            joined_BSD = torch.cat([u_BTD.new_zeros(len(u_BTD), before, u_BTD.shape[2]), u_BTD], dim=1)
        y_BTD = u_BTD * taps_WD[before]
        for back in range(1, before + 1):
            value_BTD = joined_BSD[:, before - back : before - back + T]
            if starts_BT is not None:  # what belongs to another sequence counts as nothing
                value_BTD = value_BTD * (past + torch.arange(T) - back >= starts_BT)[:, :, None]
            y_BTD = y_BTD + value_BTD * taps_WD[before - back]
        return self.out_proj(c_BTD * y_BTD)


class Lfm2MLP(MLP):
    """The gated feed-forward."""

    gate_proj, up_proj, down_proj = _part("w1"), _part("w3"), _part("w2")

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        _rename(self, gate_proj="w1", up_proj="w3", down_proj="w2")


class Lfm2Layer(Layer):
    """A layer with a short convolution (``is_conv``), or with attention."""

    input_layernorm, post_attention_layernorm = _part("operator_norm"), _part("ffn_norm")
    mlp = _part("feed_forward")

    def __init__(self, config: ModelConfig, *, is_conv: bool) -> None:
        nn.Module.__init__(self)
        self.pre_norms, self.post_norms, self.is_conv = True, False, is_conv
        self.residual_multiplier = 1.0
        if is_conv:
            self.conv = ShortConv(config)
        else:
            self.self_attn = Lfm2Attention(config)
        self.feed_forward = Lfm2MLP(config)
        self.operator_norm = RMSNorm(config.d_model, config.norm_eps)
        self.ffn_norm = RMSNorm(config.d_model, config.norm_eps)

    @property
    def mixer(self) -> nn.Module:
        return self.conv if self.is_conv else self.self_attn

    def input_groups(self) -> tuple[tuple[nn.Linear, ...], ...]:
        if not self.is_conv:
            return super().input_groups()
        mlp = self.feed_forward
        return (self.conv.in_proj,), (self.conv.out_proj,), mlp.inputs, (mlp.down_proj,)
