"""Quantization by llama.cpp itself, and what a person should know before it starts."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slm.data.errors import UserError
from slm.llama.blocks.names import F32_ENDS
from slm.llama.errors import LlamaError
from slm.llama.gguf_check import GGML_TYPES, GgufTensor, read_header

FALLBACKS = {
    "iq1_s": "iq4_nl",
    "iq1_m": "iq4_nl",
    "iq2_xxs": "iq4_nl",
    "iq2_xs": "iq4_nl",
    "iq2_s": "iq4_nl",
    "iq3_xxs": "iq4_nl",
    "iq3_s": "iq4_nl",
    "iq4_xs": "iq4_nl",
    "q2_0": "q4_0",
    "q2_k": "q4_0",
    "q3_k": "q4_0",
    "tq1_0": "q4_0",
    "tq2_0": "q4_0",
    "q4_k": "q5_0",
    "q5_k": "q5_1",
    "q6_k": "q8_0",
}
"""What llama.cpp writes instead where a row is not a multiple of the type's block (llama-quant.cpp)."""

_MIXTURES = {"iq2_s": "iq2_xs", "iq2_m": "iq2_s", "iq3_xs": "iq3_s", "iq3_m": "iq3_s", "mxfp4_moe": "q8_0"}


@dataclass(frozen=True, kw_only=True)
class Fallback:
    """A matrix with rows that the asked-for type cannot hold."""

    tensor: str
    width: int
    wanted: str
    """ggml type that the mixture starts from (a mixture raises some tensors to a larger one)."""
    used: str
    """ggml type that is written for ``wanted``."""


def base_type(file_type: str) -> str:
    """The ggml type that most matrices of a file type get: ``q4_k_m`` -> ``q4_k``."""
    if file_type in _MIXTURES:
        return _MIXTURES[file_type]
    for suffix in ("_s", "_m", "_l"):
        stem = file_type.removesuffix(suffix)
        if stem != file_type and stem in GGML_TYPES and file_type not in GGML_TYPES:
            return stem
    assert file_type in GGML_TYPES, f"no ggml type is known for the file type {file_type}"
    return file_type


def predict_fallbacks(tensors: list[GgufTensor], file_type: str) -> list[Fallback]:
    """The matrices that a file of ``file_type`` cannot store as it should, given the unquantized file's tensors."""
    wanted = base_type(file_type)
    head = "output.weight" if any(each.name == "output.weight" for each in tensors) else "token_embd.weight"
    found = []
    for tensor in tensors:
        if len(tensor.shape) < 2 or tensor.name.endswith(F32_ENDS):
            continue
        width = tensor.shape[0]
        if width % GGML_TYPES[wanted][1]:
            used = FALLBACKS.get(wanted, wanted)
            if tensor.name == head:
                used = "q8_0"  # what llama.cpp gives the output head at once
            if width % GGML_TYPES[used][1]:
                used = "f16"
            found.append(Fallback(tensor=tensor.name, width=width, wanted=wanted, used=used))
    return found


def fallback_warning(file_type: str, fallbacks: list[Fallback]) -> str:
    """One line: which matrices, which widths, what they become, and what it means."""
    layers: dict[tuple[str, int, str], int] = {}
    for each in fallbacks:
        parts = each.tensor.split(".")
        general = ".".join(["blk", "*", *parts[2:]]) if parts[0] == "blk" else each.tensor
        key = (general, each.width, each.used)
        layers[key] = layers.get(key, 0) + 1
    listed = ", ".join(
        f"{name} (rows of {width}) -> {used}" + (f" x{count}" if count > 1 else "")
        for (name, width, used), count in layers.items()
    )
    wanted = fallbacks[0].wanted
    return (
        f"{file_type}: {len(fallbacks)} matrices have rows that are not multiples of {GGML_TYPES[wanted][1]}, which "
        f"{wanted} needs; llama.cpp stores them larger (and those that the mixture raises, larger still): {listed}. "
        "The file will hold more bits per weight than its name says; quant=auto:4.5 keeps to 4.5, with types that fit"
    )


def size_bound(n_params: int, file_type: str) -> int:
    """Bytes that a file of this type cannot exceed by much: for the check of free disk space."""
    per_weight = {"f32": 4.0, "f16": 2.0, "bf16": 2.0}.get(file_type, 34 / 32)
    return int(n_params * per_weight) + (8 << 20)


def quantize_file(
    source: Path,
    target: Path,
    file_type: str,
    imatrix: Mapping[str, np.ndarray] | None,
    n_threads: int | None = None,
    *,
    tensor_types: Mapping[str, str] | None = None,
    metadata: Mapping[str, str | float] | None = None,
) -> list[str]:
    """Quantize ``source`` into ``target`` (a staged file); the names of matrices that llama.cpp says fell back.

    ``tensor_types``, ``metadata``: those of ``slm.llama.quantize.quantize``.

    UserError with llama.cpp's own reason where it refuses: equal paths, a full disk, a broken source.
    """
    from slm.llama.quantize import quantize  # loads llama.cpp

    try:
        log = quantize(
            source,
            target,
            file_type,
            imatrix=imatrix,
            n_threads=n_threads,
            tensor_types=tensor_types,
            metadata=metadata,
        )
    except LlamaError as error:
        raise UserError(f"{file_type} could not be made: {error}") from error
    return [line.split()[1] for line in log if line.startswith("warning:") and "not divisible by" in line]


def stored_types(path: Path) -> dict[str, int]:
    """ggml type -> number of weights stored so, in a finished file."""
    counts: dict[str, int] = {}
    for tensor in read_header(path).tensors:
        counts[tensor.type] = counts.get(tensor.type, 0) + int(np.prod(tensor.shape))
    return counts
