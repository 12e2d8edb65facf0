"""A checkpoint's tensors under GGUF's names, in the order of their values that llama.cpp's rotary code expects.

Shape suffixes: O output rows, D input columns.
"""

import math
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from slm.data.errors import UserError
from slm.llama.blocks.names import F32_ENDS, LONG_ROPE, gguf_name
from slm.model.config import ModelConfig

F16_LARGEST = 65_504.0


def check_weights(weights: Mapping[str, Tensor], *, to_f16: bool) -> None:
    """UserError naming the first tensor that holds NaN or infinity, or (``to_f16``) what f16 cannot hold."""
    for name, tensor in weights.items():
        low, high = (each.item() for each in tensor.aminmax())  # NaN where one of the values is NaN
        if not (math.isfinite(low) and math.isfinite(high)):
            what = "NaN" if math.isnan(low) else "infinity"
            raise UserError(
                f"the tensor {name} holds {what}: this checkpoint is broken; "
                "export an earlier one (run=RUN/checkpoints/step-...)"
            )
        if to_f16 and tensor.ndim > 1 and (largest := max(-low, high)) > F16_LARGEST:
            raise UserError(
                f"the tensor {name} reaches {largest:.4g}, more than f16 holds ({F16_LARGEST:.0f}); "
                "use bf16 or f32 instead of f16"
            )


def gguf_tensors(
    config: ModelConfig, weights: Mapping[str, Tensor], blocks: Mapping[str, Tensor] | None = None
) -> Iterator[tuple[str, Tensor]]:
    """(GGUF name, f32 tensor) of everything the file holds, one at a time. ``blocks`` (uint8), which take the place of
    the weights of their names, stay as they are.

    The ``llama`` architecture turns neighbouring values of a head together where Hugging Face turns value i with
    value i + E/2, so queries' and keys' rows change places; the others keep them. A norm is written as its gain: where
    the gain is the stored weight plus 1 (Gemma), that is what the file holds.
    """
    if config.rope_scaling and config.rope_scaling["rope_type"] == "llama3":
        yield "rope_freqs.weight", rope_factors(config)
    if config.rope_scaling and config.rope_scaling["rope_type"] == "longrope":
        for key, name in LONG_ROPE.items():
            yield name, torch.tensor(config.rope_scaling[key], dtype=torch.float32)
    for name in weights:
        if config.tie_embeddings and name == "lm_head.weight":
            continue
        weight = blocks[name] if blocks and name in blocks else weights[name]
        tensor = weight.detach() if weight.dtype == torch.uint8 else weight.detach().float()
        if config.traits.norm_offset and name.endswith("norm.weight"):
            tensor = tensor + config.traits.norm_offset
        if tensor.ndim == 3:  # the taps of a short convolution [D, 1, W]
            tensor = tensor[:, 0]
        yield gguf_name(name, config.arch), in_gguf_order(config, name, tensor)


def in_gguf_order(config: ModelConfig, name: str, weight_OD: Tensor) -> Tensor:
    """The rows of the weight ``name`` in the order that llama.cpp's rotary code expects."""
    if config.traits.interleaved_heads and name.endswith("q_proj.weight"):
        return interleave_heads(weight_OD, config.n_heads)
    if config.traits.interleaved_heads and name.endswith("k_proj.weight"):
        return interleave_heads(weight_OD, config.n_kv_heads)
    return weight_OD


def interleave_heads(weight_OD: Tensor, n_heads: int) -> Tensor:
    """Rows of each head from halves (0 .. E/2, E/2 .. E) to pairs (0, E/2, 1, E/2 + 1, ...)."""
    n_rows, n_columns = weight_OD.shape
    halves = weight_OD.reshape(n_heads, 2, n_rows // n_heads // 2, n_columns)
    return halves.transpose(1, 2).reshape(n_rows, n_columns)


def rope_factors(config: ModelConfig) -> Tensor:
    """What llama.cpp divides each pair's frequency by, f32 [E / 2], for Llama 3's long-context scaling.

    Computed value by value in f32, in the converter's own order of operations, so that files are equal to the bit.
    """
    scaling = config.rope_scaling
    assert scaling is not None
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    factor, low, high = scaling["factor"], scaling["low_freq_factor"], scaling["high_freq_factor"]
    old_context = scaling["original_max_position_embeddings"]
    factors = []
    for frequency in frequencies:
        wavelength = 2 * math.pi / frequency
        if wavelength < old_context / high:
            factors.append(1)
        elif wavelength > old_context / low:
            factors.append(factor)
        else:
            smooth = (old_context / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return torch.tensor(factors, dtype=torch.float32)


def stored_type(name: str, tensor: Tensor, encoding: str) -> str:
    """f32, f16 or bf16: how the tensor is stored in a file of type ``encoding``. Vectors, norms and the taps of short
    convolutions stay f32."""
    return "f32" if tensor.ndim < 2 or name.endswith(F32_ENDS) else encoding


def encode(tensor: Tensor, kind: str) -> np.ndarray:
    """The tensor's values as bytes-in-an-array of type ``kind``, rounded to nearest even."""
    if kind == "bf16":
        return tensor.to(torch.bfloat16).contiguous().view(torch.int16).numpy()
    values = tensor.float().contiguous().numpy()
    return values if kind == "f32" else values.astype(np.float16)
