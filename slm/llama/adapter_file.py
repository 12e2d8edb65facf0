"""The GGUF file of a LoRA adapter, checked before llama.cpp opens it. Loads no native code.

Tested in tests/export/test_adapter.py, tests/serve/test_adapters.py.
"""

from __future__ import annotations

from pathlib import Path

from slm.data.errors import UserError
from slm.llama.gguf_check import GgufHeader, read_header

_TYPES = ("f32", "f16", "bf16")
FINGERPRINT_KEY, BASE_FINGERPRINT_KEY = "slm.fingerprint", "slm.base_fingerprint"
"""Metadata: of the checkpoint that a model's file was written from, whatever its type; of an adapter's base
(``slm.model.fingerprint``)."""
BASE_KEY = "slm.base"
"""Metadata of an adapter: the directory of its base, or its name on the Hub."""


def adapter_header(path: str | Path) -> GgufHeader:
    """The checked header of an adapter's file. ``UserError`` for a damaged one, and for a file of another kind."""
    header = read_header(path)
    kind = (header.metadata.get("general.type"), header.metadata.get("adapter.type"))
    if kind != ("adapter", "lora"):
        raise UserError(f"{path} is no LoRA adapter (general.type is {kind[0]!r}): give an adapter's .gguf file")
    for tensor in header.tensors:
        if len(tensor.shape) != 2 or tensor.type not in _TYPES or not tensor.name.endswith((".lora_a", ".lora_b")):
            raise UserError(
                f"{path}: the tensor {tensor.name!r} ({tensor.type}, {tensor.shape}) is no part of a LoRA "
                "adapter; export or download it again"
            )
    return header


def check_fits(adapter: Path, model: Path) -> None:
    """``UserError`` where an adapter changes tensors that a model's file does not have, or of other shapes, and where
    the model has other weights than the adapter's base. A file from elsewhere does not say which it has."""
    header, base = adapter_header(adapter), read_header(model)
    names = [each.metadata.get("general.architecture") for each in (header, base)]
    if names[0] != names[1]:
        raise UserError(
            f"{adapter} is an adapter of a {names[0]} model, and {model} is a {names[1]} model; name the adapter's own "
            "base"
        )
    shapes = {tensor.name: tensor.shape for tensor in base.tensors}
    for tensor in header.tensors:
        weight, _, part = tensor.name.rpartition(".lora_")
        side = 0 if part == "a" else 1
        if weight not in shapes or shapes[weight][side] != tensor.shape[side]:
            found = f"{weight} has the shape {shapes[weight]}" if weight in shapes else f"it has no tensor {weight}"
            raise UserError(f"{adapter} does not fit {model}: {found}; name the adapter's own base")
    wanted, has = header.metadata.get(BASE_FINGERPRINT_KEY), base.metadata.get(FINGERPRINT_KEY)
    if wanted and has and wanted != has:
        named = header.metadata.get(BASE_KEY)
        raise UserError(
            f"{adapter} belongs to another model than {model}, of the same shape (the fingerprint of its base is "
            f"{wanted}, that of this model {has}); name a file that was exported from "
            f"{named or 'the model that the adapter was trained on'}"
        )
