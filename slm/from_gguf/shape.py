"""A GGUF file's metadata as the shape of a model.

Tested in tests/slm/from_gguf/test_convert.py.
"""

import math
from typing import Any

import numpy as np

from slm.data.errors import UserError
from slm.from_gguf.contents import Contents
from slm.llama.blocks.names import LONG_ROPE
from slm.model.architectures import TRAITS
from slm.model.config import ModelConfig, every_nth_global
from slm.model.rope import attention_factor

_WITH_EFFECT = (
    *("expert_count", "attention.scale", "logit_scale", "embedding_scale", "residual_scale", "attention.clamp_kqv"),
    *("attn_logit_softcapping", "final_logit_softcapping", "attention.max_alibi_bias"),
)
"""Keys of other models under an architecture's name; a value other than 0 changes what llama.cpp computes."""
_MULTIPLIERS = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
"""Those that a Granite has, and what the configuration calls them."""
_SOFT_CAPS = {"attn_logit_softcapping": "attention_cap", "final_logit_softcapping": "logit_cap"}
"""Those that a Gemma 2 has; llama.cpp takes its usual ones where the file names none."""


def read_shape(contents: Contents) -> ModelConfig:
    """The shape that the metadata describe. UserError for an architecture or a setting that is not computed here."""
    name = contents.path.name
    if contents.arch not in TRAITS:
        raise UserError(
            f"{name} holds a model of the architecture {contents.arch}: training knows {', '.join(TRAITS)}; serving "
            "and chatting take the file as it is"
        )
    if "token_embd.weight" not in contents.tensors:
        raise UserError(f"{name} holds a vocabulary without a model's weights: give the model's own file")
    table = contents.tensors["token_embd.weight"][1].shape
    if len(table) != 2:
        raise UserError(f"{name} holds an embedding (token_embd.weight) of the shape {table}: it is damaged")
    traits = TRAITS[contents.arch]
    known = {**(_MULTIPLIERS if traits.multipliers else {}), **(_SOFT_CAPS if traits.soft_caps else {})}
    for key in _WITH_EFFECT:
        if contents.value(key) and key not in known:
            raise UserError(f"{name} has {contents.arch}.{key}={contents.value(key)}, which is not supported here")
    value = _Required(contents)
    n_heads, width = value.number("attention.head_count"), value.number("embedding_length")
    n_layers = value.number("block_count")
    kv_heads = contents.value("attention.head_count_kv", n_heads)
    per_layer = kv_heads if isinstance(kv_heads, list) else [kv_heads] * n_layers
    head_dim = int(contents.value("attention.key_length") or width // n_heads)
    rotated = int(contents.value("rope.dimension_count") or head_dim)
    if rotated != head_dim and not traits.long_rope:
        raise UserError(
            f"{name} rotates {rotated} of {head_dim} values of each head (rope.dimension_count): not supported here"
        )
    # A Phi-3 file names a window that all layers have; llama.cpp reads on without one.
    window = int(contents.value("attention.sliding_window") or 0) if traits.long_rope else 0
    ids = {each: contents.metadata.get(f"tokenizer.ggml.{each}_token_id") for each in ("bos", "eos")}
    return ModelConfig(
        arch=contents.arch,
        vocab_size=table[1],
        n_layers=n_layers,
        d_model=width,
        n_heads=n_heads,
        n_kv_heads=max(per_layer),
        head_dim=head_dim,
        ffn_dim=value.number("feed_forward_length"),
        seq_len=min(value.number("context_length"), window or value.number("context_length")),
        rope_theta=float(contents.value("rope.freq_base") or 10_000.0),
        rope_scaling=_rope_scaling(contents, head_dim),
        rotary_dim=rotated if traits.long_rope else None,
        norm_eps=_shortest(value.required("attention.layer_norm_rms_epsilon")),
        tie_embeddings=_is_tied(contents),
        bos_id=ids["bos"],
        eos_id=ids["eos"],
        **_of_layers(contents, per_layer),
    )


class _Required:
    """Values without which there is no shape; UserError names one that is missing, or no number."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents

    def required(self, key: str) -> Any:
        found = self._contents.value(key)
        if found is None:
            raise UserError(
                f"{self._contents.path.name} lacks {self._contents.arch}.{key}: it is not complete; download it again"
            )
        return found

    def number(self, key: str) -> int:
        """One number for all layers."""
        found = self.required(key)
        if isinstance(found, list):
            if len(set(found)) != 1:
                raise UserError(f"{self._contents.path.name} has layers of several {key}: not supported here")
            found = found[0]
        if isinstance(found, str) or int(found) < 1:
            raise UserError(
                f"{self._contents.path.name} has {self._contents.arch}.{key}={found!r}, where a number above 0 "
                "belongs: it is damaged; download it again"
            )
        return int(found)


def _shortest(value: float) -> float:
    """The shortest decimal number of an f32: 1e-05, and not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _is_tied(contents: Contents) -> bool:
    """Whether the output projection is the embedding: the file has no separate one, or it is the same matrix."""
    if "output.weight" not in contents.tensors:
        return True
    (_, head), (_, table) = contents.tensors["output.weight"], contents.tensors["token_embd.weight"]
    if (head.type, head.shape) != (table.type, table.shape):
        return False
    return np.array_equal(contents.raw("output.weight"), contents.raw("token_embd.weight"))


def _of_layers(contents: Contents, kv_heads: list[int]) -> dict[str, Any]:
    """What differs from layer to layer: local attention, short convolutions."""
    traits, found = TRAITS[contents.arch], dict[str, Any]()  # type: ignore[index]  # it is one of TRAITS
    if traits.sliding_window and (window := contents.value("attention.sliding_window")):
        pattern = contents.value("attention.sliding_window_pattern", traits.sliding_pattern)
        layers = tuple(map(bool, pattern)) if isinstance(pattern, list) else every_nth_global(len(kv_heads), pattern)
        found = {"sliding_window": int(window), "local_layers": layers}
        if traits.local_rope:
            found["local_rope_theta"] = float(contents.value("rope.freq_base_swa") or 10_000.0)
    if contents.arch == "exaone4" and (window := contents.value("attention.sliding_window")):
        raise UserError(f"{contents.path.name} has a sliding window of {window} positions, which is not supported here")
    if traits.multipliers:
        given = {name: contents.value(key) for key, name in _MULTIPLIERS.items()}
        found = {name: _shortest(value) for name, value in given.items() if value}
    if traits.soft_caps:
        given = {name: contents.value(key) for key, name in _SOFT_CAPS.items()}
        found |= {name: _shortest(value) for name, value in given.items() if value is not None}
    if traits.short_conv:
        found = {"conv_layers": tuple(each == 0 for each in kv_heads)}
        found["conv_width"] = int(contents.value("shortconv.l_cache", 3))
    return found


def _rope_scaling(contents: Contents, head_dim: int) -> dict[str, Any] | None:
    """Long-context scaling of RoPE, from the metadata or from the factors that the file holds for it."""
    if any(name in contents.tensors for name in LONG_ROPE.values()):
        return _long_rope(contents)
    if "rope_freqs.weight" in contents.tensors:
        factors = _vector(contents, "rope_freqs.weight")
        theta = float(contents.value("rope.freq_base") or 10_000.0)
        return llama3_scaling(factors, theta, head_dim, contents.path.name)
    kind, factor = contents.value("rope.scaling.type", "none"), contents.value("rope.scaling.factor", 1.0)
    if kind == "none" or not factor or factor == 1.0:
        return None
    found: dict[str, Any] = {"rope_type": kind, "factor": _shortest(factor)}
    if (old := contents.value("rope.scaling.original_context_length")) is not None:
        found["original_max_position_embeddings"] = int(old)
    return found


def _vector(contents: Contents, name: str) -> np.ndarray:
    return np.concatenate([each.reshape(-1) for each in contents.rows(name)])


def _long_rope(contents: Contents) -> dict[str, Any]:
    """LongRoPE's factors, with the context's growth that the attention factor tells.

    The factor is sqrt(1 + ln(growth) / ln(original context)); the growth that the context lengths give is taken where
    it fits.
    """
    name = contents.path.name
    old = contents.value("rope.scaling.original_context_length")
    if not old or not all(each in contents.tensors for each in LONG_ROPE.values()):
        raise UserError(f"{name} has a part of LongRoPE's tensors and lengths alone: it is not complete")
    given = float(contents.value("rope.scaling.attn_factor") or 1.0)
    scaling: dict[str, Any] = {"rope_type": "longrope", "factor": (contents.value("context_length") or old) / old}
    scaling["original_max_position_embeddings"] = int(old)
    if not math.isclose(attention_factor(scaling), given, rel_tol=1e-6):
        scaling["factor"] = float(f"{old ** (given**2 - 1):.5g}")  # what an f32 tells of it
    return scaling | {key: [_shortest(each) for each in _vector(contents, tensor)] for key, tensor in LONG_ROPE.items()}


def llama3_scaling(factors: np.ndarray, theta: float, head_dim: int, name: str) -> dict[str, Any] | None:
    """Llama 3's scaling that divides each pair's frequency by ``factors``, f32 [head_dim / 2]; None where all are 1.

    Long waves are divided by the largest factor, short ones by 1. Between them 1 / factor is a straight line of 1 /
    wavelength, through which ``high_freq_factor`` and the original context follow (``low_freq_factor`` is 1: only
    ratios count). UserError for factors that no such scaling gives.
    """
    factors = factors.astype(np.float64)
    if np.all(factors == 1.0):
        return None
    largest = factors.max()
    frequencies = 1.0 / theta ** (np.arange(0, head_dim, 2) / head_dim)
    between = (factors > 1.0) & (factors < largest * (1 - 1e-6))
    # smooth = (old / wavelength - low) / (high - low), and 1 / factor = (1 - smooth) / largest + smooth.
    smooth = (1 / factors - 1 / largest) / (1 - 1 / largest)
    if between.sum() >= 2:
        slope, offset = np.polyfit(frequencies[between] / (2 * np.pi), smooth[between], 1)
        high, old = 1 - 1 / offset, -slope / offset
    else:  # published models have these
        high, old = 4.0, 8192.0
    highest, positions = round(float(high), 3), round(float(old))
    rounded = {
        "rope_type": "llama3",
        "factor": _shortest(largest),
        "low_freq_factor": 1.0,
        "high_freq_factor": highest,
        "original_max_position_embeddings": positions,
    }
    waves = 2 * np.pi / frequencies
    blend = np.clip((positions / waves - 1) / (highest - 1), 0, 1)
    if not np.allclose(1 / (blend + (1 - blend) / largest), factors, rtol=1e-4):
        raise UserError(f"{name} scales RoPE by factors that are none of Llama 3's kind: not supported here")
    return rounded
