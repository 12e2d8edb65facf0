"""What a checkpoint that was trained for a quantized type holds next to its weights: the blocks themselves.

Its ``model.safetensors`` holds the values that the blocks stand for: transformers compute with it what a GGUF of the
type does. ``qat.safetensors`` holds each quantized tensor's blocks (uint8, rows of bytes) and ``qat.json`` the types,
since a search for the blocks' scales would not find the same blocks in the values again.

Tested in tests/train/qat/test_quantized_run.py.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from slm.data.errors import UserError

BLOCKS = "qat.safetensors"
RECORD = "qat.json"


@dataclass(frozen=True, kw_only=True)
class QuantizedWeights:
    """A model's quantized tensors."""

    file_type: str
    """The type of file that they make up, such as ``q4_k_m``."""
    types: dict[str, str]
    """Hugging Face name -> ggml type, lower case."""
    blocks: dict[str, Tensor]
    """Hugging Face name -> uint8 [rows, bytes of a row]; empty where only the types were asked for."""

    def record(self) -> dict[str, Any]:
        """What ``qat.json`` holds."""
        return {"file_type": self.file_type, "tensors": self.types}


def load_quantized(directory: Path) -> QuantizedWeights | None:
    """The blocks of a checkpoint; None where it was not trained for a type. UserError where they are damaged."""
    path = directory / RECORD
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        blocks = load_file(directory / BLOCKS)
        found = QuantizedWeights(file_type=record["file_type"], types=dict(record["tensors"]), blocks=blocks)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise UserError(
            f"the quantized weights of {directory} cannot be read ({error}); export another checkpoint, or remove "
            f"{RECORD} to export it as an ordinary one"
        ) from None
    if found.types.keys() != blocks.keys():
        raise UserError(f"{directory / BLOCKS} does not hold the tensors that {RECORD} names: it is damaged")
    return found
