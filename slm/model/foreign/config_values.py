"""The values of a ``config.json`` as what they mean: people and other programs write numbers and truths as text, leave
``null`` where a key has no value, and a wrong one would be computed with without a word.

Tested in tests/slm/model/test_config.py.
"""

from typing import Any

from slm.data.errors import UserError
from slm.model.rope import number

MULTIPLIERS = ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")
_IDS = ("bos_token_id", "eos_token_id")
_POSITIVE = ("num_attention_heads", "rope_theta", "rope_local_base_freq")
_NOT_NEGATIVE = ("rms_norm_eps", "norm_eps", "attn_logit_softcapping", "final_logit_softcapping")
_FRACTIONS = (*_POSITIVE[1:], *_NOT_NEGATIVE, "query_pre_attn_scalar", *MULTIPLIERS)
_NUMBERS = (
    *("vocab_size", "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("intermediate_size", "max_position_embeddings", "sliding_window", "conv_L_cache", *_FRACTIONS),
    *("num_local_experts", "shared_intermediate_size"),
    *_IDS,
)
"""Keys with numbers as values; those of ``_FRACTIONS`` need not be whole."""
_LARGEST = 2**31 - 1
"""The largest whole number that llama.cpp reads from a GGUF file."""
_TRUTHS = (
    *("tie_word_embeddings", "tie_embedding", "attention_bias", "mlp_bias", "conv_bias", "use_sliding_window"),
    *("block_auto_adjust_ff_dim", "use_bidirectional_attention"),
)
_NEEDED = (
    *("vocab_size", "num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size"),
    *("max_position_embeddings", *_NOT_NEGATIVE[:2]),
)
"""A ``null`` of one of these keys is as if the key were not there."""


def cleaned(config: Any) -> dict[str, Any]:
    """The configuration, numbers and truths that are given as text made such. UserError for what cannot be meant."""
    if not isinstance(config, dict):
        raise UserError(f"config.json holds {_kind(config)} and no object with a model's shape: download it again")
    found = {key: value for key, value in config.items() if not (key in _NEEDED and value is None)}
    for key in ("rope_parameters", "rope_scaling"):
        if not isinstance(found.get(key) or {}, dict):
            raise UserError(f"{key} in config.json is {_kind(found[key])} and no object: correct it")
    names = found.get("architectures")
    found["architectures"] = [names] if isinstance(names, str) else names if isinstance(names, list) else []
    for key in _TRUTHS:
        if key in found:
            found[key] = _truth(found[key], key)
    for key in _NUMBERS:
        value = found.get(key)
        if key == "eos_token_id" and isinstance(value, list):
            found[key] = [_number(each, key) for each in value] or None
        elif value is not None:
            found[key] = _number(value, key)
        if key in _IDS and isinstance(found.get(key), int) and found[key] < 0:
            found[key] = None  # how some programs write that there is no such token
    if found.get("hidden_act") == "swish":
        found["hidden_act"] = "silu"  # another name of it
    if not found.get("quantization_config"):
        found.pop("quantization_config", None)
    return found


def _number(value: Any, key: str) -> float:
    result = number(value, key)
    if (key in _POSITIVE and result <= 0) or (key in _NOT_NEGATIVE and result < 0):
        raise UserError(f"{key}={value!r} in config.json must be above 0: correct it, or download config.json again")
    if key in _FRACTIONS:
        return result
    if result > _LARGEST:
        raise UserError(f"{key}={value!r} in config.json is more than a GGUF file can hold: correct it")
    if result != int(result):
        raise UserError(f"{key}={value!r} in config.json is no whole number: correct it")
    return int(result)


def _truth(value: Any, key: str) -> bool:
    """``null`` is false, as transformers takes it."""
    text = str(value).strip().lower()
    if text in ("false", "0", "none"):
        return False
    if text in ("true", "1"):
        return True
    raise UserError(f"{key}={value!r} in config.json is neither true nor false: correct it")


def _kind(value: Any) -> str:
    names = {list: "a list", str: "a text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")
