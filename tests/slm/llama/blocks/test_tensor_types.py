"""A stand-in names the same types as a real file has."""

import pytest

from slm.llama.blocks.names import gguf_name
from slm.llama.blocks.tensor_types import tensor_types
from slm.llama.gguf_check import read_header
from slm.llama.quantize import quantize
from slm.model.transformer import LanguageModel
from tests.helpers import tiny_checkpoint as tiny

SHAPES = {
    "llama": {"arch": "llama", "tie_embeddings": False, "n_layers": 3},
    "tied": {"arch": "qwen3", "tie_embeddings": True, "n_layers": 8, "n_kv_heads": 1},
    "narrow": {"arch": "qwen3", "tie_embeddings": False, "d_model": 96, "head_dim": 24, "ffn_dim": 160},
    "biases": {"arch": "qwen2", "tie_embeddings": True},
    "convolutions": {"arch": "lfm2", "tie_embeddings": True, "n_layers": 7},
    "joined": {"arch": "phi3", "tie_embeddings": False, "rotary_dim": 48, "n_layers": 3},
    "every second layer sliding": {"arch": "gemma2", "tie_embeddings": True, "sliding_window": 16},
    "sliding": {"arch": "gemma3", "tie_embeddings": True, "sliding_window": 16, "n_layers": 7},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_they_are_what_llama_cpp_gives_a_file_of_the_model(shape, tmp_path):
    config = tiny.config(**SHAPES[shape])
    model = LanguageModel(config)
    tiny.gguf_file(tmp_path / "f32.gguf", **SHAPES[shape])
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    for kind in ("q4_0", "iq4_nl", "q4_k_m", "tq2_0"):
        path = tmp_path / f"{kind}.gguf"
        quantize(tmp_path / "f32.gguf", path, kind, n_threads=1)
        real = {tensor.name: tensor.type for tensor in read_header(path).tensors}
        assert {
            gguf_name(name, config.arch): found for name, found in tensor_types(config, shapes, kind).items()
        } == real
