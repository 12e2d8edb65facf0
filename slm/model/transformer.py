"""A decoder-only transformer of the Llama family: RMSNorm, RoPE, SwiGLU, grouped-query attention, QK-norm.

Parameter names are Hugging Face's own, so a state dict is a checkpoint. With ``arch="llama"`` it computes what
transformers' LlamaForCausalLM does, with ``arch="qwen3"`` what Qwen3ForCausalLM does.

Shape suffixes: B batch, T positions of this call, S positions visible (cache included), D model width, H query
heads, K key/value heads, E values per head, F feed-forward width, V vocabulary.
"""

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from slm.model.attention import causal_attention
from slm.model.config import InitConfig, ModelConfig
from slm.model.cross_entropy import chunk_gradients, cross_entropy, linear_cross_entropy
from slm.model.initialization import CLASSIC, initialize


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dimension, computed in f32 (Zhang and Sennrich 2019)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x32 = x.float()
        normed = x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + self.eps)
        return (self.weight * normed).to(x.dtype)


class LayerCache:
    """Keys and values of the positions already computed, for generation one token at a time."""

    def __init__(self) -> None:
        self.k_BKSE: Tensor | None = None
        self.v_BKSE: Tensor | None = None

    def extend(self, k_BKTE: Tensor, v_BKTE: Tensor) -> tuple[Tensor, Tensor]:
        if self.k_BKSE is not None and self.v_BKSE is not None:
            k_BKTE = torch.cat([self.k_BKSE, k_BKTE], dim=2)
            v_BKTE = torch.cat([self.v_BKSE, v_BKTE], dim=2)
        self.k_BKSE, self.v_BKSE = k_BKTE, v_BKTE
        return k_BKTE, v_BKTE

    def __len__(self) -> int:
        return 0 if self.k_BKSE is None else self.k_BKSE.shape[2]


class Attention(nn.Module):
    """Causal self-attention with rotary positions and n_heads / n_kv_heads query heads per key head."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = config.n_heads, config.n_kv_heads, config.head_dim
        q_width, kv_width = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.d_model, q_width, bias=False)
        self.k_proj = nn.Linear(config.d_model, kv_width, bias=False)
        self.v_proj = nn.Linear(config.d_model, kv_width, bias=False)
        self.o_proj = nn.Linear(q_width, config.d_model, bias=False)
        self.blockwise = False
        """Train with ``causal_attention`` instead of torch's kernel: faster where it is compiled."""
        self.qk_norm = config.arch == "qwen3"
        if self.qk_norm:
            self.q_norm = RMSNorm(config.head_dim, config.norm_eps)
            self.k_norm = RMSNorm(config.head_dim, config.norm_eps)

    def forward(
        self,
        x_BTD: Tensor,
        cos_TE: Tensor,
        sin_TE: Tensor,
        cache: LayerCache | None = None,
        starts_BT: Tensor | None = None,
    ) -> Tensor:
        B, T, _ = x_BTD.shape
        q_BTHE = self.q_proj(x_BTD).view(B, T, self.n_heads, self.head_dim)
        k_BTKE = self.k_proj(x_BTD).view(B, T, self.n_kv_heads, self.head_dim)
        v_BTKE = self.v_proj(x_BTD).view(B, T, self.n_kv_heads, self.head_dim)
        if self.qk_norm:
            q_BTHE, k_BTKE = self.q_norm(q_BTHE), self.k_norm(k_BTKE)
        q_BHTE = apply_rope(q_BTHE.transpose(1, 2), cos_TE, sin_TE)
        k_BKSE = apply_rope(k_BTKE.transpose(1, 2), cos_TE, sin_TE)
        v_BKSE = v_BTKE.transpose(1, 2)
        mask = None
        if cache is not None:
            past = len(cache)
            k_BKSE, v_BKSE = cache.extend(k_BKSE, v_BKSE)
            if past:  # is_causal would line the last query up with the first key
                mask = torch.ones(T, past + T, dtype=torch.bool).tril(past)
        elif starts_BT is not None:
            mask = torch.ones(T, T, dtype=torch.bool).tril() & (torch.arange(T) >= starts_BT[:, None, :, None])
        if cache is None and self.blockwise:
            y_BHTE = causal_attention(q_BHTE, k_BKSE, v_BKSE, starts_BT)
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


class MLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x)) (Shazeer 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.d_model, config.ffn_dim, bias=False)
        self.up_proj = nn.Linear(config.d_model, config.ffn_dim, bias=False)
        self.down_proj = nn.Linear(config.ffn_dim, config.d_model, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x_BTD)) * self.up_proj(x_BTD))


class Layer(nn.Module):
    """One pre-norm transformer block."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.d_model, config.norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.d_model, config.norm_eps)
        self.mlp = MLP(config)

    def forward(
        self,
        x_BTD: Tensor,
        cos_TE: Tensor,
        sin_TE: Tensor,
        cache: LayerCache | None = None,
        starts_BT: Tensor | None = None,
    ) -> Tensor:
        x_BTD = x_BTD + self.self_attn(self.input_layernorm(x_BTD), cos_TE, sin_TE, cache, starts_BT)
        return x_BTD + self.mlp(self.post_attention_layernorm(x_BTD))


class Decoder(nn.Module):
    """Embedding, layers and final norm: everything below the output head."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.d_model)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.n_layers))
        self.norm = RMSNorm(config.d_model, config.norm_eps)

    def layer_list(self) -> list[Layer]:
        """The layers, by their type."""
        return cast(list[Layer], list(self.layers))


class LanguageModel(nn.Module):
    """The whole model. ``state_dict`` names are Hugging Face's; a tied head has no entry of its own.

    New weights are random as ``init`` says. Set the seed with torch before building.
    """

    def __init__(self, config: ModelConfig, init: InitConfig = CLASSIC) -> None:
        super().__init__()
        self.config = config
        self.gradient_checkpointing = False
        self._cross_entropy = cross_entropy
        self.model = Decoder(config)
        if not config.tie_embeddings:
            self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        initialize(self, config.n_layers, init)

    @property
    def head_weight_VD(self) -> Tensor:
        return self.model.embed_tokens.weight if self.config.tie_embeddings else self.lm_head.weight

    def hidden_states(
        self, ids_BT: Tensor, cache: list[LayerCache] | None = None, starts_BT: Tensor | None = None
    ) -> Tensor:
        """The final normed hidden states [B, T, D] of token ids [B, T] (int64), after ``cache`` where given.

        ``starts_BT`` (int32): the first position of its sequence that each one may see; None: all before it.
        """
        start = len(cache[0]) if cache else 0
        cos_TE, sin_TE = rope_tables(self.config, start, start + ids_BT.shape[1])
        x_BTD = self.model.embed_tokens(ids_BT)
        if torch.is_autocast_enabled("cpu"):
            x_BTD = x_BTD.to(torch.get_autocast_dtype("cpu"))
        for index, layer in enumerate(self.model.layers):
            if self.gradient_checkpointing and torch.is_grad_enabled():
                x_BTD = checkpoint(layer, x_BTD, cos_TE, sin_TE, None, starts_BT, use_reentrant=False)
            else:
                # Generation changes shape with every token: it must not reach a layer compiled for one shape.
                call = layer.forward if cache else layer
                x_BTD = call(x_BTD, cos_TE, sin_TE, cache[index] if cache else None, starts_BT)
        return self.model.norm(x_BTD)

    def forward(self, ids_BT: Tensor, cache: list[LayerCache] | None = None, starts_BT: Tensor | None = None) -> Tensor:
        """Next-token logits [B, T, V], f32, of token ids [B, T] (int64)."""
        return F.linear(self.hidden_states(ids_BT, cache, starts_BT), self.head_weight_VD).float()

    def loss(self, ids_BT: Tensor, targets_BT: Tensor, starts_BT: Tensor | None = None) -> Tensor:
        """Mean cross-entropy in nats per scored target (targets of -100 are not scored): a scalar, f32."""
        return self._cross_entropy(self.hidden_states(ids_BT, starts_BT=starts_BT), self.head_weight_VD, targets_BT)

    def new_cache(self) -> list[LayerCache]:
        """An empty cache to pass to successive calls that continue one batch of sequences."""
        return [LayerCache() for _ in self.model.layers]

    def compile_parts(self) -> None:
        """Compile this model's layers and loss with inductor. All layers share one graph, so one layer is compiled."""
        for layer in self.model.layer_list():
            layer.self_attn.blockwise = True
            layer.compile(dynamic=False)
        compiled = torch.compile(chunk_gradients, dynamic=False)

        def chunked(x_BTD: Tensor, weight_VD: Tensor, targets_BT: Tensor) -> Tensor:
            return linear_cross_entropy(x_BTD.flatten(0, 1), weight_VD, targets_BT.flatten(), compiled)

        self._cross_entropy = chunked


def apply_rope(x_BHTE: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> Tensor:
    """Rotary position embedding (Su et al. 2021). Values i and i + E/2 are a pair, as in Hugging Face's layout."""
    half = x_BHTE.shape[-1] // 2
    rotated = torch.cat((-x_BHTE[..., half:], x_BHTE[..., :half]), dim=-1)
    return (x_BHTE * cos_TE + rotated * sin_TE).to(x_BHTE.dtype)


def rope_tables(config: ModelConfig, start: int, stop: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [T, E], f32, of positions ``start`` to ``stop``."""
    angles_TE = torch.outer(torch.arange(start, stop, dtype=torch.float32), rope_frequencies(config)).repeat(1, 2)
    return angles_TE.cos(), angles_TE.sin()


def rope_frequencies(config: ModelConfig) -> Tensor:
    """Radians per position of each pair of values, f32 [E / 2], with Llama 3's long-context scaling where set."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    scaling = config.rope_scaling
    if not scaling:
        return frequencies
    old_context = scaling["original_max_position_embeddings"]
    low, high, factor = scaling["low_freq_factor"], scaling["high_freq_factor"], scaling["factor"]
    wavelength = 2 * math.pi / frequencies
    smooth = ((old_context / wavelength - low) / (high - low)).clamp(0, 1)
    # Long waves are slowed by the factor, short ones kept, those between blended.
    return frequencies * (smooth + (1 - smooth) / factor)
