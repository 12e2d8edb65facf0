"""GGUF's names of a Llama-family model's tensors.

Tested in tests/export/gguf/test_tensors.py.
"""

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
_TOP_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_name(name: str) -> str:
    """GGUF's name of a Hugging Face tensor: ``model.layers.3.mlp.up_proj.weight`` -> ``blk.3.ffn_up.weight``."""
    stem, _, kind = name.rpartition(".")
    if stem in _TOP_NAMES:
        return f"{_TOP_NAMES[stem]}.{kind}"
    prefix, layer, rest = "model.layers.", *(stem.removeprefix("model.layers.").partition(".")[::2])
    assert stem.startswith(prefix), f"{name} has no place in a Llama-family GGUF"
    assert rest in _LAYER_NAMES, f"{name} has no place in a Llama-family GGUF"
    return f"blk.{layer}.{_LAYER_NAMES[rest]}.{kind}"
