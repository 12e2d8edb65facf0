"""A model's sizes as GGUF metadata, under llama.cpp's keys.

Tested in tests/export/gguf/test_writer.py, tests/export/test_pipeline.py, tests/slm/llama/speed/test_kept.py.
"""

from typing import Any

from slm.model.config import ModelConfig, every_nth_global
from slm.model.rope import attention_factor


def add_shape(writer: Any, model: ModelConfig) -> None:
    """Add everything that llama.cpp reads of the model's shape to a ``gguf.GGUFWriter``."""
    writer.add_block_count(model.n_layers)
    writer.add_context_length(model.seq_len)
    writer.add_embedding_length(model.d_model)
    writer.add_feed_forward_length(model.ffn_dim)
    writer.add_head_count(model.n_heads)
    # A layer without attention is one without keys and values.
    layers = [0 if model.is_conv(layer) else model.n_kv_heads for layer in range(model.n_layers)]
    writer.add_head_count_kv(layers if model.n_conv_layers else model.n_kv_heads)
    writer.add_rope_freq_base(model.rope_theta)
    writer.add_layer_norm_rms_eps(model.norm_eps)
    writer.add_key_length(model.head_dim)
    writer.add_value_length(model.head_dim)
    writer.add_vocab_size(model.vocab_size)
    writer.add_rope_dimension_count(model.rotated)
    _add_rope_scaling(writer, model)
    if model.traits.multipliers:
        writer.add_attention_scale(model.attention_scale)
        writer.add_embedding_scale(model.embedding_multiplier)
        writer.add_residual_scale(model.residual_multiplier)
        writer.add_logit_scale(model.logits_scaling)
    if model.traits.short_conv:
        writer.add_shortconv_l_cache(model.conv_width)
    if model.traits.long_rope:
        writer.add_sliding_window(0)  # none, as llama.cpp's converter says it
    if model.traits.soft_caps:
        writer.add_attn_logit_softcapping(model.attention_cap)
        writer.add_final_logit_softcapping(model.logit_cap)
    if model.sliding_window is not None:
        writer.add_sliding_window(model.sliding_window)
        writer.add_sliding_window_pattern(_pattern(model))
        if model.arch != "gemma2":  # llama.cpp's converter names one base for a gemma2, and two for an olmo2
            writer.add_rope_freq_base_swa(model.local_rope_theta)
    elif model.arch == "gemma2":  # without it llama.cpp takes 4,096 positions for the window of every second layer
        writer.add_sliding_window(model.seq_len)


def _add_rope_scaling(writer: Any, model: ModelConfig) -> None:
    """Scalings that llama.cpp computes from numbers; Llama 3's and LongRoPE's are tensors."""
    scaling = model.rope_scaling
    if model.traits.long_rope:  # its factors are tensors
        writer.add_rope_scaling_orig_ctx_len(
            int(scaling["original_max_position_embeddings"]) if scaling else model.seq_len
        )
        if scaling:
            writer.add_rope_scaling_attn_factors(attention_factor(scaling))
        return
    if scaling is None or scaling["rope_type"] == "llama3":
        return
    import gguf

    writer.add_rope_scaling_type(gguf.RopeScalingType(scaling["rope_type"]))
    writer.add_rope_scaling_factor(scaling["factor"])
    if scaling["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])


def _pattern(model: ModelConfig) -> int | list[bool]:
    """The number n where the last of every n layers sees all positions; else layer by layer. llama.cpp's converter
    writes a number for a gemma3, and the layers of an olmo2."""
    for n in () if model.arch == "olmo2" else range(2, model.n_layers + 2):
        if model.local_layers == every_nth_global(model.n_layers, n):
            return n
    return list(model.local_layers)
