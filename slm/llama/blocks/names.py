"""GGUF's names of a model's tensors.

Tested in tests/export/gguf/test_tensors.py.
"""

from slm.model.architectures import TRAITS, Architecture
from slm.model.rope import LONG, SHORT

_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_POST_NORM_NAMES = _LAYER_NAMES | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
"""The names of an architecture with norms at the end of branches, too."""
_LFM2_NAMES = {
    "operator_norm": "attn_norm",
    "self_attn.out_proj": "attn_output",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "conv.in_proj": "shortconv.in_proj",
    "conv.conv": "shortconv.conv",
    "conv.out_proj": "shortconv.out_proj",
    "ffn_norm": "ffn_norm",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w3": "ffn_up",
    "feed_forward.w2": "ffn_down",
}
"""Those that Llamas do not have."""
_JOINED_NAMES = {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"}
"""A Phi-3's."""
_TOP_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "model.embedding_norm": "token_embd_norm",  # so called in an LFM2's file: it stands behind the last layer
    "lm_head": "output",
}

LONG_ROPE = {LONG: "rope_factors_long.weight", SHORT: "rope_factors_short.weight"}
"""LongRoPE's factors."""
F32_ENDS = ("_norm.weight", "shortconv.conv.weight")
"""How the names of tensors with rows end that llama.cpp keeps as f32 in files of every type."""


def gguf_name(name: str, arch: Architecture = "llama") -> str:
    """GGUF's name of a Hugging Face tensor: ``model.layers.3.mlp.up_proj.weight`` -> ``blk.3.ffn_up.weight``.

    ``arch`` matters for norms only: a matrix or a bias of one name is the same in all architectures.
    """
    stem, _, kind = name.rpartition(".")
    if stem in _TOP_NAMES:
        return f"{_TOP_NAMES[stem]}.{kind}"
    layer_names = (_POST_NORM_NAMES if TRAITS[arch].post_norms else _LAYER_NAMES) | _LFM2_NAMES | _JOINED_NAMES
    prefix, layer, rest = "model.layers.", *(stem.removeprefix("model.layers.").partition(".")[::2])
    assert stem.startswith(prefix), f"{name} has no place in a GGUF of a {arch} model"
    assert rest in layer_names, f"{name} has no place in a GGUF of a {arch} model"
    return f"blk.{layer}.{layer_names[rest]}.{kind}"
