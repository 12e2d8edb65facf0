"""The architectures, and what sets each apart from the plain one: all of them are what stock llama.cpp runs.

``slm/model/transformer.py`` computes by these traits, the export writes by them. So a new architecture of the same
kind is a row here, as long as it needs no operation that none of them has.

Tested in tests/slm/model/test_architectures.py.
"""

from dataclasses import dataclass
from typing import Literal

Architecture = Literal[
    "llama", "qwen2", "qwen3", "gemma2", "gemma3", "lfm2", "smollm3", "granite", "exaone4", "olmo2", "phi3"
]
"""llama.cpp's names (``general.architecture``)."""


OLMO3 = "Olmo3ForCausalLM"
"""transformers' class of an ``olmo2`` with sliding windows."""
LINEAR_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The linear layers of a Llama's block, by their names in a checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Traits:
    """One architecture. The defaults are Llama's, but for the order of values in a head."""

    hf_class: str
    """transformers' class, ``architectures`` in config.json."""
    hf_type: str
    """``model_type`` in config.json."""
    hf_aliases: tuple[str, ...] = ()
    """Classes that compute the same, some with joined matrices (``foreign/joined.py``); their checkpoints are read as
    this one."""
    head_dim: int | None = None
    """``head_dim`` where config.json has none; None: hidden_size / num_attention_heads."""
    tied: bool = False
    """``tie_word_embeddings`` where config.json has none."""
    qkv_bias: bool = False
    """The projections to queries, keys and values add a bias."""
    qk_norm: bool = False
    """An RMSNorm over each head's queries and keys."""
    wide_qk_norm: bool = False
    """The norm is one over the values of all heads, and not one over each head's."""
    pre_norms: bool = True
    """Attention and feed-forward have an RMSNorm before them."""
    post_norms: bool = False
    """Attention and feed-forward have an RMSNorm behind them."""
    nope: bool = False
    """Some layers have no rotary positions."""
    multipliers: bool = False
    """Numbers of the configuration stand before embeddings, attention's logits, branches and logits."""
    norm_offset: float = 0.0
    """What is added to the stored weight of every RMSNorm to get its gain. A GGUF holds the gains."""
    activation: Literal["silu", "gelu_tanh"] = "silu"
    """Activation of the gated feed-forward."""
    scaled_embedding: bool = False
    """Embeddings are multiplied by sqrt(d_model)."""
    sliding_window: bool = False
    """Some layers may see only the last positions, and are not scaled by ``rope_scaling``."""
    sliding_pattern: int = 0
    """The last of this many layers sees all positions, where nothing else is said."""
    local_rope: bool = False
    """Layers with a sliding window have another RoPE base."""
    query_scalar: bool = False
    """Attention's logits are divided by the root of a number of the configuration."""
    joined: bool = False
    """One matrix makes queries, keys and values, and one gate and up."""
    long_rope: bool = False
    """RoPE may turn the first values of a head alone, and may be scaled as LongRoPE, but in no other way."""
    soft_caps: bool = False
    """Attention's scores and the logits are soft-capped: x becomes cap * tanh(x / cap)."""
    short_conv: bool = False
    """Some layers have a gated short convolution in place of attention."""
    linear_layers: tuple[str, ...] = LINEAR_LAYERS
    """The linear layers of its blocks, by their names in a checkpoint."""
    final_norm: str = "norm"
    """The name of the norm behind the last layer."""
    interleaved_heads: bool = False
    """llama.cpp turns neighbouring values of a head together; Hugging Face turns value i with i + head_dim / 2."""


TRAITS: dict[Architecture, Traits] = {
    "llama": Traits(
        hf_class="LlamaForCausalLM",
        hf_type="llama",
        hf_aliases=("MistralForCausalLM",),
        interleaved_heads=True,
    ),
    "qwen2": Traits(hf_class="Qwen2ForCausalLM", hf_type="qwen2", qkv_bias=True),
    "qwen3": Traits(hf_class="Qwen3ForCausalLM", hf_type="qwen3", head_dim=128, qk_norm=True),
    "gemma2": Traits(
        hf_class="Gemma2ForCausalLM",
        hf_type="gemma2",
        head_dim=256,
        tied=True,
        post_norms=True,
        norm_offset=1.0,
        activation="gelu_tanh",
        scaled_embedding=True,
        sliding_window=True,
        sliding_pattern=2,
        query_scalar=True,
        soft_caps=True,
    ),
    "gemma3": Traits(
        hf_class="Gemma3ForCausalLM",
        hf_type="gemma3_text",
        head_dim=256,
        tied=True,
        qk_norm=True,
        post_norms=True,
        norm_offset=1.0,
        activation="gelu_tanh",
        scaled_embedding=True,
        sliding_window=True,
        sliding_pattern=6,
        local_rope=True,
        query_scalar=True,
    ),
    "lfm2": Traits(
        hf_class="Lfm2ForCausalLM",
        hf_type="lfm2",
        tied=True,
        qk_norm=True,
        short_conv=True,
        linear_layers=("q_proj", "k_proj", "v_proj", "out_proj", "in_proj", "w1", "w3", "w2"),
        final_norm="embedding_norm",
    ),
    "smollm3": Traits(hf_class="SmolLM3ForCausalLM", hf_type="smollm3", tied=True, nope=True, interleaved_heads=True),
    "granite": Traits(
        hf_class="GraniteForCausalLM",
        hf_type="granite",
        hf_aliases=("GraniteMoeHybridForCausalLM",),
        multipliers=True,
        interleaved_heads=True,
    ),
    "exaone4": Traits(hf_class="Exaone4ForCausalLM", hf_type="exaone4", qk_norm=True, pre_norms=False, post_norms=True),
    "olmo2": Traits(
        hf_class="Olmo2ForCausalLM",
        hf_type="olmo2",
        hf_aliases=(OLMO3,),
        qk_norm=True,
        wide_qk_norm=True,
        pre_norms=False,
        post_norms=True,
        sliding_window=True,
        sliding_pattern=4,
    ),
    "phi3": Traits(
        hf_class="Phi3ForCausalLM",
        hf_type="phi3",
        joined=True,
        long_rope=True,
        linear_layers=("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
    ),
}

LEFT_OUT = {
    "Gemma4ForConditionalGeneration": "it has an embedding for each layer, and layers that share keys and values",
    "Gemma4ForCausalLM": "it has an embedding for each layer, and layers that share keys and values",
    "Qwen3_5ForCausalLM": "three of four of its layers have a gated delta rule in place of attention",
    "Qwen3_5ForConditionalGeneration": "three of four of its layers have a gated delta rule in place of attention",
    "Qwen3NextForCausalLM": "three of four of its layers have a gated delta rule in place of attention",
}
"""Small models' classes that are not computed here, and what is in the way."""


def known_classes() -> str:
    """transformers' classes in words: ``A, B and C``."""
    *first, last = [name for traits in TRAITS.values() for name in (traits.hf_class, *traits.hf_aliases)]
    return f"{', '.join(first)} and {last}"
