"""The type of each tensor in a file of a quantized type, as llama.cpp itself decides it.

A mixture such as Q4_K_M gives some tensors a larger type, the head gets Q6_K, and rows that no block fits fall back.
All of that depends on the tensors' names, their widths and the number of layers. So llama.cpp quantizes a stand-in
here: a file of the same names, with two rows in each matrix.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np

from slm.llama.blocks.names import gguf_name
from slm.llama.blocks.shape import add_shape
from slm.llama.gguf_check import read_header
from slm.llama.quantize import quantize
from slm.model.config import ModelConfig

ROWS = 2
"""llama.cpp takes a matrix of one row for a vector, which stays f32."""


def tensor_types(model: ModelConfig, shapes: Mapping[str, tuple[int, ...]], file_type: str) -> dict[str, str]:
    """Hugging Face name -> ggml type in a file of ``file_type``, made without an importance matrix.

    ``shapes``: the shapes of the model's tensors by Hugging Face's names (a tied head is not among them).
    """
    with tempfile.TemporaryDirectory(prefix="slm-types-") as folder:
        source, target = Path(folder) / "f32.gguf", Path(folder) / "quantized.gguf"
        _write_stand_in(source, model, shapes)
        quantize(source, target, file_type, n_threads=1)
        found = {tensor.name: tensor.type for tensor in read_header(target).tensors}
    return {name: found[gguf_name(name, model.arch)] for name in shapes}


def _write_stand_in(path: Path, model: ModelConfig, shapes: Mapping[str, tuple[int, ...]]) -> None:
    writer = gguf.GGUFWriter(path, model.arch)
    add_shape(writer, model)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("no_vocab")
    for name, shape in shapes.items():
        values = np.ones(shape if len(shape) < 2 else (ROWS, shape[-1]), np.float32)
        writer.add_tensor(gguf_name(name, model.arch), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
