import gguf
import numpy as np
import pytest
import torch

from slm.data.errors import UserError
from slm.export.gguf.tensors import (
    check_weights,
    encode,
    gguf_tensors,
    interleave_heads,
    rope_factors,
    stored_type,
)
from slm.llama.blocks.names import gguf_name
from slm.model.architectures import TRAITS
from slm.model.config import ModelConfig
from slm.model.rope import rope_frequencies
from slm.model.transformer import LanguageModel

SHAPE = {
    "vocab_size": 32, "n_layers": 2, "d_model": 16, "n_heads": 4, "n_kv_heads": 2, "head_dim": 4, "ffn_dim": 24,
    "seq_len": 64,
}  # fmt: skip


HEADS = [(arch, tie) for arch in TRAITS for tie in (True, False) if (arch, tie) != ("gemma2", False)]
"""Architectures, and whether the head is tied; a Gemma 2's is."""


@pytest.mark.parametrize(("arch", "tie"), HEADS)
def test_names_are_llama_cpps_own(arch, tie):
    model = LanguageModel(ModelConfig(arch=arch, tie_embeddings=tie, **SHAPE))
    (kind,) = [kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == arch]
    known = gguf.get_tensor_name_map(kind, SHAPE["n_layers"])
    names = dict(gguf_tensors(model.config, model.state_dict()))
    assert len(names) == len(model.state_dict())
    for name in model.state_dict():
        assert gguf_name(name, arch) == known.get_name(name, try_suffixes=(".weight", ".bias"))
        assert gguf_name(name, arch) in names
    matrices = [name for name, tensor in model.state_dict().items() if tensor.ndim == 2]
    assert all(gguf_name(name) == gguf_name(name, arch) for name in matrices)  # so their users need not know it


def test_gemmas_norms_are_written_as_their_gains():
    model = LanguageModel(ModelConfig(arch="gemma3", **SHAPE))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    tensors, state = dict(gguf_tensors(model.config, model.state_dict())), model.state_dict()
    for name, tensor in state.items():
        written = tensors[gguf_name(name, "gemma3")]
        assert torch.equal(written, tensor + 1 if name.endswith("norm.weight") else tensor), name


def test_interleaved_rows():
    rows = torch.arange(8.0)[:, None]  # two heads of four rows
    assert interleave_heads(rows, 2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_queries_and_keys_are_permuted_where_llama_cpp_rotates_neighbours():
    for arch in TRAITS:
        permuted = arch in ("llama", "smollm3", "granite")
        if TRAITS[arch].joined:
            continue
        model = LanguageModel(ModelConfig(arch=arch, **SHAPE))
        tensors = dict(gguf_tensors(model.config, model.state_dict()))
        for kind in "qkv":
            ours = tensors[f"blk.1.attn_{kind}.weight"]
            theirs = model.state_dict()[f"model.layers.1.self_attn.{kind}_proj.weight"]
            assert torch.equal(ours, theirs) == (not permuted or kind == "v")


def test_rope_factors_divide_the_plain_frequencies_into_the_scaled_ones():
    scaling = {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    }  # fmt: skip
    shape = SHAPE | {"head_dim": 64, "d_model": 64, "n_heads": 1, "n_kv_heads": 1}
    scaled, plain = ModelConfig(rope_scaling=scaling, **shape), ModelConfig(**shape)
    factors = rope_factors(scaled)
    assert factors.min() == 1
    assert factors.max() == 8
    assert ((factors > 1) & (factors < 8)).any()
    torch.testing.assert_close(rope_frequencies(plain) / factors, rope_frequencies(scaled), rtol=1e-5, atol=0)
    assert "rope_freqs.weight" in dict(gguf_tensors(scaled, {}))


def test_long_ropes_factors_are_tensors():
    factors = {"short_factor": [1.0, 2.5], "long_factor": [1.5, 40.0]}
    scaling = {"rope_type": "longrope", "original_max_position_embeddings": 16, **factors}
    config = ModelConfig(arch="phi3", rope_scaling=scaling, **SHAPE)
    tensors = dict(gguf_tensors(config, {}))
    assert {name: each.tolist() for name, each in tensors.items()} == {
        "rope_factors_short.weight": [1.0, 2.5], "rope_factors_long.weight": [1.5, 40.0],
    }  # fmt: skip


@pytest.mark.parametrize(("value", "word"), [(float("nan"), "NaN"), (float("-inf"), "infinity")])
def test_broken_weights_are_named(value, word):
    weights = {"fine.weight": torch.ones(3), "broken.weight": torch.ones(2, 2)}
    check_weights(weights, to_f16=True)
    weights["broken.weight"][1, 0] = value
    with pytest.raises(UserError, match=f"broken.weight holds {word}"):
        check_weights(weights, to_f16=False)


def test_f16_cannot_hold_large_weights():
    weights = {"large.weight": torch.full((2, 2), 1e5), "vector.weight": torch.full((2,), 1e5)}
    check_weights(weights, to_f16=False)
    with pytest.raises(UserError, match=r"large.weight reaches 1e\+05"):
        check_weights(weights, to_f16=True)


def test_encodings_are_the_reference_librarys():
    values = torch.randn(7, 33, generator=torch.Generator().manual_seed(1)) * 10
    for kind, reference in (("f16", "F16"), ("bf16", "BF16"), ("f32", "F32")):
        expected = gguf.quants.quantize(values.numpy(), gguf.GGMLQuantizationType[reference])
        assert np.array_equal(encode(values, kind).view(np.uint8), expected.view(np.uint8))


def test_vectors_and_norms_stay_f32():
    assert stored_type("blk.0.attn_norm.weight", torch.ones(4), "f16") == "f32"
    assert stored_type("blk.0.attn_q_norm.weight", torch.ones(4), "bf16") == "f32"
    assert stored_type("blk.0.attn_q.weight", torch.ones(4, 4), "bf16") == "bf16"
