"""The parts of a decoder: norms, attention, the gated feed-forward, and the layer that joins them.

Shape suffixes: B batch, T positions of this call, S positions visible (cache included), D model width, H query
heads, K key/value heads, E values per head, F feed-forward width.

Tested in tests/slm/model/test_transformer.py, tests/slm/model/test_architectures.py.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slm.model.config import ModelConfig
from slm.model.layers.attention import capped_attention, causal_attention


class RMSNorm(nn.Module):
    """x / rms(x) * (weight + offset) * scale over the last dimension, computed in f32 (Zhang and Sennrich 2019)."""

    def __init__(self, width: int, eps: float, offset: float = 0.0, scale: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((width,), 1.0 - offset))
        self.eps, self.offset, self.scale = eps, offset, scale

    @property
    def gain(self) -> Tensor:
        """What the normed values are multiplied by."""
        gain = self.weight + self.offset if self.offset else self.weight
        return gain if self.scale == 1.0 else gain * self.scale

    def forward(self, x: Tensor) -> Tensor:
        x32 = x.float()
        normed = x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + self.eps)
        return (self.gain * normed).to(x.dtype)


class LayerCache:
    """What a layer keeps of the positions already computed, for generation one token at a time: attention all keys and
    values, a short convolution its newest inputs.

    ``length``: the positions that the texts may come to have, where that is known; LongRoPE goes by it."""

    def __init__(self, length: int = 0) -> None:
        self.length = length
        self.k_BKSE: Tensor | None = None
        self.v_BKSE: Tensor | None = None
        self._newest_BTD: Tensor | None = None
        self._n_seen = 0

    def extend(self, k_BKTE: Tensor, v_BKTE: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values, these included."""
        self._n_seen += k_BKTE.shape[2]
        if self.k_BKSE is not None and self.v_BKSE is not None:
            k_BKTE = torch.cat([self.k_BKSE, k_BKTE], dim=2)
            v_BKTE = torch.cat([self.v_BKSE, v_BKTE], dim=2)
        self.k_BKSE, self.v_BKSE = k_BKTE, v_BKTE
        return k_BKTE, v_BKTE

    def with_newest(self, u_BTD: Tensor, count: int) -> Tensor:
        """``u_BTD`` behind the ``count`` inputs before it, zeros where there were none: [B, count + T, D]."""
        self._n_seen += u_BTD.shape[1]
        before = u_BTD.new_zeros(len(u_BTD), count, u_BTD.shape[2]) if self._newest_BTD is None else self._newest_BTD
        joined = torch.cat([before, u_BTD], dim=1)
        self._newest_BTD = joined[:, joined.shape[1] - count :]
        return joined

    def keep(self, rows: Tensor) -> None:
        """Keep these sequences of the batch (int64 [B']) and forget the others, which have ended."""
        if self.k_BKSE is not None and self.v_BKSE is not None:
            self.k_BKSE, self.v_BKSE = self.k_BKSE[rows], self.v_BKSE[rows]
        if self._newest_BTD is not None:
            self._newest_BTD = self._newest_BTD[rows]

    def __len__(self) -> int:
        """Positions already computed."""
        return self._n_seen


class Attention(nn.Module):
    """Causal self-attention with rotary positions and n_heads / n_kv_heads query heads per key head.

    ``window``: the positions that one sees, itself included, while a cache is used; without one ``starts_BT`` says it.
    """

    def __init__(self, config: ModelConfig, window: int | None = None) -> None:
        super().__init__()
        self.window = window
        offset = config.traits.norm_offset
        self.n_heads, self.n_kv_heads, self.head_dim = config.n_heads, config.n_kv_heads, config.head_dim
        q_width, kv_width = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
        self._add_inputs(config)
        self.o_proj = nn.Linear(q_width, config.d_model, bias=False)
        self.blockwise = False
        """Train with ``causal_attention`` instead of torch's kernel: faster where it is compiled."""
        self.cap = config.attention_cap
        """What scores are soft-capped at."""
        self.qk_norm, self.query_factor = config.traits.qk_norm, config.query_factor
        self.wide_qk_norm = config.traits.wide_qk_norm
        if self.qk_norm:
            self.q_norm = RMSNorm(q_width if self.wide_qk_norm else config.head_dim, config.norm_eps, offset)
            self.k_norm = RMSNorm(kv_width if self.wide_qk_norm else config.head_dim, config.norm_eps, offset)

    def _add_inputs(self, config: ModelConfig) -> None:
        bias, head_dim = config.traits.qkv_bias, config.head_dim
        self.q_proj = nn.Linear(config.d_model, config.n_heads * head_dim, bias=bias)
        self.k_proj = nn.Linear(config.d_model, config.n_kv_heads * head_dim, bias=bias)
        self.v_proj = nn.Linear(config.d_model, config.n_kv_heads * head_dim, bias=bias)

    @property
    def inputs(self) -> tuple[nn.Linear, ...]:
        """What makes queries, keys and values; their outputs lie in this order."""
        return self.q_proj, self.k_proj, self.v_proj

    def _queries_keys_values(self, x_BTD: Tensor) -> tuple[Tensor, ...]:
        return self.q_proj(x_BTD), self.k_proj(x_BTD), self.v_proj(x_BTD)

    def rotated(self, x_BTD: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [B, H, T, E], keys and values [B, K, T, E]; the first two normed and with their rotary positions."""
        q_BTHE, k_BTKE, v_BTKE = (each.unflatten(-1, (-1, self.head_dim)) for each in self._queries_keys_values(x_BTD))
        if self.wide_qk_norm:
            q_BTHE = self.q_norm(q_BTHE.flatten(2)).view_as(q_BTHE)
            k_BTKE = self.k_norm(k_BTKE.flatten(2)).view_as(k_BTKE)
        elif self.qk_norm:
            q_BTHE, k_BTKE = self.q_norm(q_BTHE), self.k_norm(k_BTKE)
        if self.query_factor != 1.0:
            q_BTHE = q_BTHE * self.query_factor
        q_BHTE = apply_rope(q_BTHE.transpose(1, 2), cos_TE, sin_TE)
        return q_BHTE, apply_rope(k_BTKE.transpose(1, 2), cos_TE, sin_TE), v_BTKE.transpose(1, 2)

    def forward(
        self,
        x_BTD: Tensor,
        cos_TE: Tensor,
        sin_TE: Tensor,
        cache: LayerCache | None = None,
        starts_BT: Tensor | None = None,
    ) -> Tensor:
        B, T, _ = x_BTD.shape
        q_BHTE, k_BKSE, v_BKSE = self.rotated(x_BTD, cos_TE, sin_TE)
        mask = None
        if cache is not None:
            past = len(cache)
            k_BKSE, v_BKSE = cache.extend(k_BKSE, v_BKSE)
            mask = cached_mask(past, T, self.window, starts_BT)
        elif starts_BT is not None:
            mask = torch.ones(T, T, dtype=torch.bool).tril() & (torch.arange(T) >= starts_BT[:, None, :, None])
        if cache is None and (self.blockwise or self.cap):
            y_BHTE = causal_attention(q_BHTE, k_BKSE, v_BKSE, starts_BT, self.cap)
        elif self.cap:
            y_BHTE = capped_attention(q_BHTE, k_BKSE, v_BKSE, self.cap, mask)
        else:
            y_BHTE = F.scaled_dot_product_attention(
                q_BHTE,
                k_BKSE,
                v_BKSE,
                attn_mask=mask,
                is_causal=mask is None,
                enable_gqa=self.n_kv_heads != self.n_heads,
            )
        return self.o_proj(y_BHTE.transpose(1, 2).reshape(B, T, self.n_heads * self.head_dim))


def cached_mask(past: int, T: int, window: int | None, starts_BT: Tensor | None = None) -> Tensor | None:
    """Which of ``past`` + T keys each of T queries sees, bool [T, S]; None where plain causal attention says it.

    With ``starts_BT``, the first key that each query may see, it is [B, 1, T, S].
    """
    local = window is not None and past + T > window
    if not past and not local and starts_BT is None:
        return None  # is_causal would line the last query up with the first key where there is a past
    mask = torch.ones(T, past + T, dtype=torch.bool).tril(past)
    if local and window is not None:
        mask = mask.triu(past - window + 1)
    return mask if starts_BT is None else mask & (torch.arange(past + T) >= starts_BT[:, None, :, None])


class MLP(nn.Module):
    """A gated feed-forward: down(f(gate(x)) * up(x)), f being SiLU or GELU's tanh form (Shazeer 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self._add_inputs(config)
        self.down_proj = nn.Linear(config.ffn_dim, config.d_model, bias=False)
        self.gelu = config.traits.activation == "gelu_tanh"

    def _add_inputs(self, config: ModelConfig) -> None:
        self.gate_proj = nn.Linear(config.d_model, config.ffn_dim, bias=False)
        self.up_proj = nn.Linear(config.d_model, config.ffn_dim, bias=False)

    @property
    def inputs(self) -> tuple[nn.Linear, ...]:
        """What makes gate and up; their outputs lie in this order."""
        return self.gate_proj, self.up_proj

    def _gate_and_up(self, x_BTD: Tensor) -> tuple[Tensor, ...]:
        return self.gate_proj(x_BTD), self.up_proj(x_BTD)

    def forward(self, x_BTD: Tensor) -> Tensor:
        gate_BTF, up_BTF = self._gate_and_up(x_BTD)
        act_BTF = F.gelu(gate_BTF, approximate="tanh") if self.gelu else F.silu(gate_BTF)
        return self.down_proj(act_BTF * up_BTF)


class Layer(nn.Module):
    """One transformer block. Its two branches are normed at their beginning (``pre_norms``), at their end
    (``post_norms``), or at both.

    Llama's ``post_attention_layernorm`` stands before the feed-forward, Gemma's behind attention.
    """

    attention_class, mlp_class = Attention, MLP

    def __init__(self, config: ModelConfig, window: int | None = None) -> None:
        super().__init__()

        def norm() -> RMSNorm:
            return RMSNorm(config.d_model, config.norm_eps, config.traits.norm_offset)

        self.pre_norms, self.post_norms = config.traits.pre_norms, config.traits.post_norms
        self.residual_multiplier = config.residual_multiplier
        if self.pre_norms:
            self.input_layernorm = norm()
        self.self_attn = self.attention_class(config, window)
        self.post_attention_layernorm = norm()
        if self.post_norms:
            if self.pre_norms:
                self.pre_feedforward_layernorm = norm()
            self.post_feedforward_layernorm = norm()
        self.mlp = self.mlp_class(config)

    @property
    def mixer(self) -> nn.Module:
        """What moves information between positions: attention, or what a kind of layer has in its place."""
        return self.self_attn

    def input_groups(self) -> tuple[tuple[nn.Linear, ...], ...]:
        """The linear layers, those together that read the same input."""
        attention, mlp = self.self_attn, self.mlp
        return attention.inputs, (attention.o_proj,), mlp.inputs, (mlp.down_proj,)

    @property
    def attention_norm(self) -> RMSNorm | None:
        """The norm before attention."""
        return self.input_layernorm if self.pre_norms else None

    @property
    def feedforward_norm(self) -> RMSNorm | None:
        """The norm before the feed-forward."""
        if not self.pre_norms:
            return None
        return self.pre_feedforward_layernorm if self.post_norms else self.post_attention_layernorm

    def forward(
        self,
        x_BTD: Tensor,
        cos_TE: Tensor,
        sin_TE: Tensor,
        cache: LayerCache | None = None,
        starts_BT: Tensor | None = None,
    ) -> Tensor:
        attended_BTD = self.mixer(self.mixer_input(x_BTD), cos_TE, sin_TE, cache, starts_BT)
        return self.output(x_BTD, attended_BTD)

    def mixer_input(self, x_BTD: Tensor) -> Tensor:
        """What attention reads of the layer's input."""
        return _normed(self.attention_norm, x_BTD)

    def output(self, x_BTD: Tensor, attended_BTD: Tensor) -> Tensor:
        """The layer's output, of its input and of what attention has made of it."""
        if self.post_norms:
            x_BTD = x_BTD + self.post_attention_layernorm(attended_BTD)
            return x_BTD + self.post_feedforward_layernorm(self.mlp(_normed(self.feedforward_norm, x_BTD)))
        if self.residual_multiplier != 1.0:
            x_BTD = x_BTD + attended_BTD * self.residual_multiplier
            return x_BTD + self.mlp(self.post_attention_layernorm(x_BTD)) * self.residual_multiplier
        x_BTD = x_BTD + attended_BTD
        return x_BTD + self.mlp(self.post_attention_layernorm(x_BTD))


def _normed(norm: RMSNorm | None, x_BTD: Tensor) -> Tensor:
    return x_BTD if norm is None else norm(x_BTD)


def apply_rope(x_BHTE: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> Tensor:
    """Rotary position embedding (Su et al. 2021). Values i and i + E/2 are a pair, as in Hugging Face's layout. Where
    the tables are narrower than a head, its further values stay."""
    if (width := cos_TE.shape[-1]) < x_BHTE.shape[-1]:
        return torch.cat((apply_rope(x_BHTE[..., :width], cos_TE, sin_TE), x_BHTE[..., width:]), dim=-1)
    half = x_BHTE.shape[-1] // 2
    rotated = torch.cat((-x_BHTE[..., half:], x_BHTE[..., :half]), dim=-1)
    return (x_BHTE * cos_TE + rotated * sin_TE).to(x_BHTE.dtype)
