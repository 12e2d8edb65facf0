"""A decoder-only transformer of the Llama family: RMSNorm, RoPE, gated feed-forward, grouped-query attention.

Parameter names are Hugging Face's own, so a state dict is a checkpoint. It computes what transformers' class of the
configuration's architecture does; ``slm/model/architectures.py`` says in what they differ.

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
    """x / rms(x) * (weight + offset) over the last dimension, computed in f32 (Zhang and Sennrich 2019)."""

    def __init__(self, width: int, eps: float, offset: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((width,), 1.0 - offset))
        self.eps, self.offset = eps, offset

    @property
    def gain(self) -> Tensor:
        """What the normed values are multiplied by."""
        return self.weight + self.offset if self.offset else self.weight

    def forward(self, x: Tensor) -> Tensor:
        x32 = x.float()
        normed = x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + self.eps)
        return (self.gain * normed).to(x.dtype)


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
    """Causal self-attention with rotary positions and n_heads / n_kv_heads query heads per key head.

    ``window``: the positions that one sees, itself included, while a cache is used; without one ``starts_BT`` says it.
    """

    def __init__(self, config: ModelConfig, window: int | None = None) -> None:
        super().__init__()
        self.window = window
        bias, offset = config.traits.qkv_bias, config.traits.norm_offset
        self.n_heads, self.n_kv_heads, self.head_dim = config.n_heads, config.n_kv_heads, config.head_dim
        q_width, kv_width = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.d_model, q_width, bias=bias)
        self.k_proj = nn.Linear(config.d_model, kv_width, bias=bias)
        self.v_proj = nn.Linear(config.d_model, kv_width, bias=bias)
        self.o_proj = nn.Linear(q_width, config.d_model, bias=False)
        self.blockwise = False
        """Train with ``causal_attention`` instead of torch's kernel: faster where it is compiled."""
        self.qk_norm, self.query_factor = config.traits.qk_norm, config.query_factor
        if self.qk_norm:
            self.q_norm = RMSNorm(config.head_dim, config.norm_eps, offset)
            self.k_norm = RMSNorm(config.head_dim, config.norm_eps, offset)

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
        if self.query_factor != 1.0:
            q_BTHE = q_BTHE * self.query_factor
        q_BHTE = apply_rope(q_BTHE.transpose(1, 2), cos_TE, sin_TE)
        k_BKSE = apply_rope(k_BTKE.transpose(1, 2), cos_TE, sin_TE)
        v_BKSE = v_BTKE.transpose(1, 2)
        mask = None
        if cache is not None:
            past = len(cache)
            k_BKSE, v_BKSE = cache.extend(k_BKSE, v_BKSE)
            mask = cached_mask(past, T, self.window)
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


def cached_mask(past: int, T: int, window: int | None) -> Tensor | None:
    """Which of ``past`` + T keys each of T queries sees, bool [T, S]; None where plain causal attention says it."""
    local = window is not None and past + T > window
    if not past and not local:
        return None  # is_causal would line the last query up with the first key where there is a past
    mask = torch.ones(T, past + T, dtype=torch.bool).tril(past)
    return mask.triu(past - window + 1) if local and window is not None else mask


class MLP(nn.Module):
    """A gated feed-forward: down(f(gate(x)) * up(x)), f being SiLU or GELU's tanh form (Shazeer 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.d_model, config.ffn_dim, bias=False)
        self.up_proj = nn.Linear(config.d_model, config.ffn_dim, bias=False)
        self.down_proj = nn.Linear(config.ffn_dim, config.d_model, bias=False)
        self.gelu = config.traits.activation == "gelu_tanh"

    def forward(self, x_BTD: Tensor) -> Tensor:
        gate_BTF = self.gate_proj(x_BTD)
        act_BTF = F.gelu(gate_BTF, approximate="tanh") if self.gelu else F.silu(gate_BTF)
        return self.down_proj(act_BTF * self.up_proj(x_BTD))


class Layer(nn.Module):
    """One pre-norm transformer block; with ``post_norms`` its two branches are normed at their end, too.

    Llama's ``post_attention_layernorm`` stands before the feed-forward, Gemma's behind attention.
    """

    def __init__(self, config: ModelConfig, window: int | None = None) -> None:
        super().__init__()

        def norm() -> RMSNorm:
            return RMSNorm(config.d_model, config.norm_eps, config.traits.norm_offset)

        self.post_norms = config.traits.post_norms
        self.input_layernorm = norm()
        self.self_attn = Attention(config, window)
        self.post_attention_layernorm = norm()
        if self.post_norms:
            self.pre_feedforward_layernorm = norm()
            self.post_feedforward_layernorm = norm()
        self.mlp = MLP(config)

    @property
    def feedforward_norm(self) -> RMSNorm:
        """The norm before the feed-forward."""
        return self.pre_feedforward_layernorm if self.post_norms else self.post_attention_layernorm

    def forward(
        self,
        x_BTD: Tensor,
        cos_TE: Tensor,
        sin_TE: Tensor,
        cache: LayerCache | None = None,
        starts_BT: Tensor | None = None,
    ) -> Tensor:
        attended_BTD = self.self_attn(self.input_layernorm(x_BTD), cos_TE, sin_TE, cache, starts_BT)
        if self.post_norms:
            x_BTD = x_BTD + self.post_attention_layernorm(attended_BTD)
            return x_BTD + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x_BTD)))
        x_BTD = x_BTD + attended_BTD
        return x_BTD + self.mlp(self.post_attention_layernorm(x_BTD))


class Embedding(nn.Embedding):
    """torch's, without random numbers on the meta device: for these torch imports its compiler, which takes seconds."""

    def reset_parameters(self) -> None:
        if not self.weight.is_meta:
            super().reset_parameters()


class Decoder(nn.Module):
    """Embedding, layers and final norm: everything below the output head."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.d_model)
        windows = [config.sliding_window if config.is_local(index) else None for index in range(config.n_layers)]
        self.layers = nn.ModuleList(Layer(config, window) for window in windows)
        self.norm = RMSNorm(config.d_model, config.norm_eps, config.traits.norm_offset)

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
        initialize(self, config.n_layers, init, norm_offset=config.traits.norm_offset)

    @property
    def head_weight_VD(self) -> Tensor:
        return self.model.embed_tokens.weight if self.config.tie_embeddings else self.lm_head.weight

    def hidden_states(
        self, ids_BT: Tensor, cache: list[LayerCache] | None = None, starts_BT: Tensor | None = None
    ) -> Tensor:
        """The final normed hidden states [B, T, D] of token ids [B, T] (int64), after ``cache`` where given.

        ``starts_BT`` (int32): the first position of its sequence that each one may see; None: all before it.
        ids [B, T, S] are bags of S tokens: a position's embedding is the mean of theirs.
        """
        start, T = len(cache[0]) if cache else 0, ids_BT.shape[1]
        rope_TE = rope_tables(self.config, start, start + T)
        local_rope_TE, local_starts_BT = rope_TE, starts_BT
        if any(self.config.local_layers):
            local_rope_TE = rope_tables(self.config, start, start + T, local=True)
            local_starts_BT = None if cache else local_starts(self.config, ids_BT.shape[:2], starts_BT)
        x_BTD = self.model.embed_tokens(ids_BT)
        if ids_BT.ndim == 3:
            x_BTD = x_BTD.mean(2)
        if self.config.traits.scaled_embedding:
            x_BTD = x_BTD * self.config.embedding_scale
        if torch.is_autocast_enabled("cpu"):
            x_BTD = x_BTD.to(torch.get_autocast_dtype("cpu"))
        for index, layer in enumerate(self.model.layers):
            local = self.config.is_local(index)
            (cos_TE, sin_TE), seen_BT = (local_rope_TE, local_starts_BT) if local else (rope_TE, starts_BT)
            if self.gradient_checkpointing and torch.is_grad_enabled():
                x_BTD = checkpoint(layer, x_BTD, cos_TE, sin_TE, None, seen_BT, use_reentrant=False)
            else:
                # Generation changes shape with every token: it must not reach a layer compiled for one shape.
                call = layer.forward if cache else layer
                x_BTD = call(x_BTD, cos_TE, sin_TE, cache[index] if cache else None, seen_BT)
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


def local_starts(config: ModelConfig, shape: torch.Size, starts_BT: Tensor | None = None) -> Tensor | None:
    """The first position that each one sees in a local layer, int32 ``shape`` [B, T]; ``starts_BT``: in other layers.

    None where that is every position before it.
    """
    window, T = config.sliding_window, shape[1]
    if window is None or window >= T:
        return starts_BT
    first_T = (torch.arange(T, dtype=torch.int32) - (window - 1)).clamp(min=0)
    return first_T.expand(shape) if starts_BT is None else torch.maximum(starts_BT, first_T)


def rope_tables(config: ModelConfig, start: int, stop: int, *, local: bool = False) -> tuple[Tensor, Tensor]:
    """Cosines and sines [T, E], f32, of positions ``start`` to ``stop``; ``local``: those of local layers."""
    frequencies = rope_frequencies(config, local=local)
    angles_TE = torch.outer(torch.arange(start, stop, dtype=torch.float32), frequencies).repeat(1, 2)
    return angles_TE.cos(), angles_TE.sin()


def rope_frequencies(config: ModelConfig, *, local: bool = False) -> Tensor:
    """Radians per position of each pair of values, f32 [E / 2], with Llama 3's long-context scaling where set."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / (config.local_rope_theta if local else config.rope_theta) ** exponents
    scaling = config.rope_scaling
    if not scaling:
        return frequencies
    old_context = scaling["original_max_position_embeddings"]
    low, high, factor = scaling["low_freq_factor"], scaling["high_freq_factor"], scaling["factor"]
    wavelength = 2 * math.pi / frequencies
    smooth = ((old_context / wavelength - low) / (high - low)).clamp(0, 1)
    # Long waves are slowed by the factor, short ones kept, those between blended.
    return frequencies * (smooth + (1 - smooth) / factor)


def empty_model(config: ModelConfig) -> LanguageModel:
    """A model in memory whose weights are not set, to copy others into.

    ``nn.Module.to_empty`` does the same, but imports a package of symbolic mathematics, which takes a second.
    """
    with torch.device("meta"):
        model = LanguageModel(config)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(torch.empty(parameter.shape, dtype=parameter.dtype)))
    return model
