"""A checkpoint as a function of plain tensors, with the key/value cache going in and out: what is traced for exports.

Names and shapes follow Hugging Face's optimum, so that its ``ORTModelForCausalLM`` and programs made for it run
the file. Queries meet the keys in plain matrix products, which every runtime has.

Shape suffixes: B batch, T positions of this call, P positions in the cache, S = P + T, D model width, H query heads, K
key/value heads, G = H / K, E values per head, V vocabulary.

Tested in tests/export/interchange/test_make.py.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slm.model.cross_entropy import soft_capped
from slm.model.layers.layer import Attention
from slm.model.rope import attention_factor, rope_frequencies
from slm.model.transformer import LanguageModel, no_rotation


class CachedDecoder(nn.Module):
    """``model`` with the signature of an exported decoder. It shares the model's weights. All layers have
    attention.

    LongRoPE's long factors are taken from the call on that goes beyond the original context, as by transformers.
    """

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        config = model.config
        self.language_model = model
        self.frequencies, self.local_frequencies = rope_frequencies(config), rope_frequencies(config, local=True)
        self.attention_factor = attention_factor(config.rope_scaling)
        scaling = config.rope_scaling or {}
        self.original_context = scaling.get("original_max_position_embeddings", 0)
        self.long_frequencies = (
            rope_frequencies(config, length=config.seq_len) if scaling.get("rope_type") == "longrope" else None
        )

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, past_key_values: Sequence[Any]
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Next-token logits [B, T, V] and each layer's (keys, values) [B, K, S, E], past ones included.

        ``input_ids``, ``position_ids``: int64 [B, T]. ``attention_mask``: int64 [B, S], 0 for padding, which stands
        on the left. ``past_key_values``: each layer's (keys, values) [B, K, P, E]; P is 0 for a prompt.
        """
        model, config = self.language_model.model, self.language_model.config
        frequencies = self.frequencies
        if self.long_frequencies is not None:
            frequencies = torch.where(position_ids.max() >= self.original_context, self.long_frequencies, frequencies)
        rope = _tables(position_ids, frequencies, self.attention_factor)
        n_new, n_all = input_ids.shape[1], attention_mask.shape[1]
        queries_T1, keys_1S = torch.arange(n_new)[:, None] + (n_all - n_new), torch.arange(n_all)[None]
        seen_BTS = (keys_1S <= queries_T1) & (attention_mask[:, None, :] != 0)
        local_rope, local_seen_BTS = rope, seen_BTS
        if config.sliding_window is not None:
            local_rope = _tables(position_ids, self.local_frequencies, 1.0)
            local_seen_BTS = seen_BTS & (keys_1S > queries_T1 - config.sliding_window)
        x_BTD = model.embed_tokens(input_ids) * config.embedding_scale
        present = []
        for index, (layer, past) in enumerate(zip(model.layer_list(), past_key_values, strict=True)):
            local = config.is_local(index)
            (cos_B1TE, sin_B1TE), visible_BTS = (local_rope, local_seen_BTS) if local else (rope, seen_BTS)
            if not config.has_rope(index):
                cos_B1TE, sin_B1TE = no_rotation(cos_B1TE)
            # Not minus infinity: a padded query sees nothing, and its softmax would be NaN.
            bias_BTS = torch.where(visible_BTS, 0.0, torch.finfo(torch.float32).min)
            y_BTD, cache = _attend(
                layer.self_attn, layer.mixer_input(x_BTD), cos_B1TE, sin_B1TE, bias_BTS[:, None, None], past
            )
            x_BTD = layer.output(x_BTD, y_BTD)
            present.append(cache)
        return self.language_model.capped(F.linear(model.norm(x_BTD), self.language_model.head_weight_VD)), present


def _tables(position_ids: Tensor, frequencies: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines [B, 1, T, rotated] of positions [B, T]."""
    angles_BTE = (position_ids[:, :, None].float() * frequencies).repeat(1, 1, 2)
    return factor * angles_BTE.cos()[:, None], factor * angles_BTE.sin()[:, None]


def _attend(
    attention: Attention, x_BTD: Tensor, cos_B1TE: Tensor, sin_B1TE: Tensor, bias_B11TS: Tensor, past: Any
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    n_batch, n_new, _ = x_BTD.shape
    n_heads, n_kv_heads, head_dim = attention.n_heads, attention.n_kv_heads, attention.head_dim
    q_BHTE, k_BKTE, v_BKTE = attention.rotated(x_BTD, cos_B1TE, sin_B1TE)
    k_BKSE, v_BKSE = torch.cat([past[0], k_BKTE], dim=2), torch.cat([past[1], v_BKTE], dim=2)
    q_BKGTE = q_BHTE.reshape(n_batch, n_kv_heads, n_heads // n_kv_heads, n_new, head_dim)
    scores_BKGTS = q_BKGTE @ k_BKSE[:, :, None].transpose(-1, -2) * head_dim**-0.5
    y_BKGTE = (soft_capped(scores_BKGTS, attention.cap) + bias_B11TS).softmax(-1) @ v_BKSE[:, :, None]
    y_BTD = y_BKGTE.reshape(n_batch, n_heads, n_new, head_dim).transpose(1, 2).reshape(n_batch, n_new, -1)
    return attention.o_proj(y_BTD), (k_BKSE, v_BKSE)


def input_names(n_layers: int) -> list[str]:
    """In the order of ``forward``, caches taken apart."""
    caches = [f"past_key_values.{i}.{part}" for i in range(n_layers) for part in ("key", "value")]
    return ["input_ids", "attention_mask", "position_ids", *caches]


def output_names(n_layers: int) -> list[str]:
    """Likewise."""
    return ["logits", *(f"present.{i}.{part}" for i in range(n_layers) for part in ("key", "value"))]


def example_inputs(model: LanguageModel, n_batch: int = 2, n_new: int = 3, n_past: int = 5) -> tuple[Any, ...]:
    """Arguments of ``forward`` for tracing. No size is 0 or 1, which tracing would take for constants."""
    config = model.config
    past = [
        tuple(torch.zeros(n_batch, config.n_kv_heads, n_past, config.head_dim) for _ in range(2))
        for _ in range(config.n_layers)
    ]
    position_ids = torch.arange(n_past, n_past + n_new).repeat(n_batch, 1)
    mask = torch.ones(n_batch, n_past + n_new, dtype=torch.int64)
    return torch.zeros(n_batch, n_new, dtype=torch.int64), mask, position_ids, past


def dynamic_shapes(n_layers: int, sizes: dict[str, Any]) -> dict[str, Any]:
    """Which sizes may change, for ``torch.export`` and ``torch.onnx``. ``sizes``: for ``batch_size``,
    ``sequence_length``, ``past_sequence_length`` and ``total_sequence_length`` what stands for them there."""
    batch, new = sizes["batch_size"], sizes["sequence_length"]
    cache = {0: batch, 2: sizes["past_sequence_length"]}
    return {
        "input_ids": {0: batch, 1: new},
        "attention_mask": {0: batch, 1: sizes["total_sequence_length"]},
        "position_ids": {0: batch, 1: new},
        "past_key_values": [(cache, cache) for _ in range(n_layers)],
    }
