"""Phi-3's layers (Microsoft 2024): one matrix makes queries, keys and values, and one gate and up.

Shape suffixes: B batch, T positions, D model width, W widths of queries, keys or values, F feed-forward width.

Tested in tests/slm/model/test_architectures.py.
"""

from torch import Tensor, nn

from slm.model.config import ModelConfig
from slm.model.layers.layer import MLP, Attention, Layer


class JoinedAttention(Attention):
    """Attention with one matrix of queries, keys and values, in this order."""

    def _add_inputs(self, config: ModelConfig) -> None:
        self.widths = [heads * config.head_dim for heads in (config.n_heads, config.n_kv_heads, config.n_kv_heads)]
        self.qkv_proj = nn.Linear(config.d_model, sum(self.widths), bias=False)

    @property
    def inputs(self) -> tuple[nn.Linear, ...]:
        return (self.qkv_proj,)

    def _queries_keys_values(self, x_BTD: Tensor) -> tuple[Tensor, ...]:
        return self.qkv_proj(x_BTD).split(self.widths, dim=-1)


class JoinedMLP(MLP):
    """A gated feed-forward with one matrix of gate and up, in this order."""

    def _add_inputs(self, config: ModelConfig) -> None:
        self.gate_up_proj = nn.Linear(config.d_model, 2 * config.ffn_dim, bias=False)

    @property
    def inputs(self) -> tuple[nn.Linear, ...]:
        return (self.gate_up_proj,)

    def _gate_and_up(self, x_BTD: Tensor) -> tuple[Tensor, ...]:
        return self.gate_up_proj(x_BTD).chunk(2, dim=-1)


class JoinedLayer(Layer):
    """A layer of both."""

    attention_class, mlp_class = JoinedAttention, JoinedMLP
