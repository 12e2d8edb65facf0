"""A file that was exported from a checkpoint is read back as that checkpoint."""

import json
import os
from collections import Counter

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from slm.data.errors import UserError
from slm.from_gguf import convert, proof
from slm.from_gguf.contents import Contents, open_contents
from slm.from_gguf.convert import RECORD, checkpoint, cost
from slm.from_gguf.shape import llama3_scaling, read_shape
from slm.from_gguf.weights import write_weights
from slm.llama.quantize import quantize
from slm.model.checkpoint import load_config, load_model
from slm.model.config import ModelConfig
from tests.helpers import tiny_checkpoint as tiny
from tests.helpers import tiny_gguf

SCALING = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LONG_ROPE = {
    "rope_type": "longrope",
    "original_max_position_embeddings": 32,
    "short_factor": [1.0, 1.1, 1.3, 2.0],
    "long_factor": [1.0, 2.5, 11.0, 60.25],
}
LINEAR = {"rope_type": "linear", "factor": 2.0}
SHAPES = {
    "llama": {"tie_embeddings": False, "rope_scaling": SCALING, "rope_theta": 5e5},
    "qwen2": {"arch": "qwen2", "tie_embeddings": True, "rope_scaling": YARN},
    "qwen3": {"arch": "qwen3", "tie_embeddings": True, "norm_eps": 1e-6, "rope_scaling": LINEAR},
    "gemma2": {
        "arch": "gemma2",
        "sliding_window": 40,
        "tie_embeddings": True,
        "attention_cap": 40.0,
        "logit_cap": 20.0,
    },
    "gemma3": {"arch": "gemma3", "n_layers": 7, "sliding_window": 40, "tie_embeddings": True},
    "lfm2": {"arch": "lfm2", "tie_embeddings": True},
    "smollm3": {"arch": "smollm3", "n_layers": 4, "tie_embeddings": True, "rope_theta": 2e6},
    "granite": {
        "arch": "granite",
        "embedding_multiplier": 12.0,
        "attention_multiplier": 0.0156,
        "residual_multiplier": 0.22,
        "logits_scaling": 8.0,
    },
    "exaone4": {"arch": "exaone4", "tie_embeddings": True, "rope_scaling": SCALING, "rope_theta": 5e5},
    "olmo2": {"arch": "olmo2"},
    "phi3": {"arch": "phi3"},
    # A text of the proof is longer than the original context.
    "phi3-long": {"arch": "phi3", "tie_embeddings": True, "rotary_dim": 8, "rope_scaling": LONG_ROPE},
    "phi3-factor": {"arch": "phi3", "rotary_dim": 8, "rope_scaling": LONG_ROPE | {"factor": 9.0}},
    "olmo3": {"arch": "olmo2", "n_layers": 5, "sliding_window": 40, "rope_theta": 5e5, "rope_scaling": YARN},
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """An f32 file of each architecture; its checkpoint is in a folder next to it."""
    folder = tmp_path_factory.mktemp("files")
    return {name: tiny.gguf_file(folder / f"{name}.gguf", **shape) for name, shape in SHAPES.items()}


@pytest.mark.parametrize("arch", SHAPES)
def test_shape_and_weights_are_the_checkpoints(files, arch, tmp_path):
    contents = open_contents(files[arch])
    original = files[arch].with_suffix(".checkpoint")
    shape = read_shape(contents)
    assert shape == load_config(original)
    write_weights(contents, shape, tmp_path / "model.safetensors")
    ours, theirs = load_file(tmp_path / "model.safetensors"), load_file(original / "model.safetensors")
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        if shape.traits.norm_offset and name.endswith("norm.weight"):  # a file holds 1 + weight
            torch.testing.assert_close(ours[name], tensor, rtol=0, atol=1e-6)
        else:
            assert torch.equal(ours[name], tensor), name


def test_a_file_is_read_back_once_and_proven(files, monkeypatch):
    said: list[str] = []
    found = checkpoint(files["llama"], said.append)
    assert said[0].startswith("llama.gguf: llama, ")
    assert said[0].endswith(" 32.0 bits per weight (f32 100%); not quantized")
    assert said[1].startswith("read back: the ids of 500 texts are llama.cpp's")
    record = json.loads((found / RECORD).read_text())
    assert record["proof"]["kl"] < 1e-6
    assert record["proof"]["same_top"] == 1
    monkeypatch.setattr(convert, "write_weights", None)
    assert checkpoint(files["llama"], said.append) == found
    model, original = load_model(found), load_model(files["llama"].with_suffix(".checkpoint"))
    for name, tensor in original.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name


def test_yarn_is_llama_cpps(files):
    said: list[str] = []
    found = checkpoint(files["qwen2"], said.append)
    assert json.loads((found / RECORD).read_text())["proof"]["kl"] < 1e-6
    assert load_config(found).rope_scaling == YARN


def test_a_quantized_file_has_llama_cpps_values(files, tmp_path):
    path = tmp_path / "m-Q8_0.gguf"
    quantize(files["qwen3"], path, "q8_0", n_threads=1)
    said: list[str] = []
    found = checkpoint(path, said.append)
    assert json.loads((found / RECORD).read_text())["proof"]["kl"] < 5e-3
    assert "what the quantization cost is not recorded" in said[0]
    import gguf

    reader = gguf.GGUFReader(path)
    blocks = next(each for each in reader.tensors if each.name == "blk.0.ffn_up.weight")
    values = gguf.quants.dequantize(blocks.data, blocks.tensor_type)
    weights = load_file(found / "model.safetensors")
    assert np.array_equal(weights["model.layers.0.mlp.up_proj.weight"].numpy(), values)
    (tmp_path / "export.json").write_text(
        json.dumps({"files": [{"file": path.name, "perplexity_change": 0.0123, "kl": 0.004}]})
    )
    contents = open_contents(path)
    assert "its export measured +1.23% perplexity and a KL divergence of 0.004" in cost(contents, Counter(q8_0=1))


def test_a_split_file_is_one_file(files, tmp_path):
    """Written by hand: the first part has all metadata and the first tensors."""
    import gguf

    whole = open_contents(files["lfm2"])
    raw = files["lfm2"].read_bytes()
    (header,) = whole.headers
    half = len(header.tensors) // 2
    paths = [tmp_path / f"m-0000{n}-of-00002.gguf" for n in (1, 2)]
    for n, (path, tensors) in enumerate(zip(paths, (header.tensors[:half], header.tensors[half:]), strict=True)):
        writer = gguf.GGUFWriter(path, "lfm2")
        writer.add_uint16("split.no", n)
        writer.add_uint16("split.count", 2)
        if n == 0:
            for field in gguf.GGUFReader(files["lfm2"]).fields.values():
                if field.types and not field.name.startswith(("GGUF.", "general.architecture")):
                    kind = field.types[0]
                    part = field.types[1] if kind == gguf.GGUFValueType.ARRAY else None
                    writer.add_key_value(field.name, field.contents(), kind, part)
        for each in tensors:
            at = header.data_offset + each.offset
            values = np.frombuffer(raw[at : at + each.n_bytes], np.float32).reshape(tuple(reversed(each.shape)))
            writer.add_tensor(each.name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    contents = open_contents(paths[1])
    shape = read_shape(contents)
    assert shape == load_config(files["lfm2"].with_suffix(".checkpoint"))
    write_weights(contents, shape, tmp_path / "model.safetensors")
    ours = load_file(tmp_path / "model.safetensors")
    theirs = load_file(files["lfm2"].with_suffix(".checkpoint") / "model.safetensors")
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())
    paths[0].unlink()
    with pytest.raises(UserError, match=r"1 of 2 parts are missing \(m-00001-of-00002\.gguf\)"):
        open_contents(paths[1])


def test_wrong_weights_are_not_believed(files, tmp_path, monkeypatch):
    """The rows of queries and keys in the file's own order: the classic silent error."""
    monkeypatch.setattr("slm.from_gguf.weights.in_halves", lambda weight_OD, n_heads: weight_OD)
    with pytest.raises(UserError, match=r"does not predict what llama\.cpp predicts with the file"):
        checkpoint(files["llama"], lambda line: None)
    assert not list((tmp_path / "cache" / "slm" / "from-gguf").glob("*/*"))


@pytest.mark.parametrize(("theta", "head_dim", "old"), [(5e5, 64, 8192), (5e5, 128, 8192), (1e4, 32, 512)])
def test_llama3s_scaling_follows_from_its_factors(theta, head_dim, old):
    from slm.export.gguf.tensors import rope_factors

    scaling = SCALING | {"original_max_position_embeddings": old, "high_freq_factor": 4.0, "factor": 8.0}
    config = tiny.config(head_dim=head_dim, rope_theta=theta, rope_scaling=scaling)
    assert isinstance(config, ModelConfig)
    assert llama3_scaling(rope_factors(config).numpy(), theta, head_dim, "m") == scaling
    assert llama3_scaling(np.ones(head_dim // 2, np.float32), theta, head_dim, "m") is None
    with pytest.raises(UserError, match="none of Llama 3's kind"):
        llama3_scaling(np.linspace(1, 7, head_dim // 2, dtype=np.float32), theta, head_dim, "m")


def changed(contents: Contents, **metadata: object) -> Contents:
    contents.metadata.update({key.replace("__", "."): value for key, value in metadata.items()})
    return contents


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"general__architecture": "mamba"}, "the architecture mamba: training knows llama, qwen2"),
        ({"llama__expert_count": 8}, "llama.expert_count=8, which is not supported"),
        ({"llama__rope__dimension_count": 32}, "rotates 32 of 64 values of each head"),
        ({"llama__context_length": None}, "lacks llama.context_length"),
        ({"llama__attention__head_count": 0}, "has llama.attention.head_count=0, where a number above 0 belongs"),
        ({"llama__block_count": "two"}, "has llama.block_count='two', where a number above 0 belongs"),
    ],
)
def test_other_models_are_named(files, metadata, said):
    with pytest.raises(UserError, match=said):
        read_shape(changed(open_contents(files["llama"]), **metadata))


def test_other_files_are_named(files, tmp_path, monkeypatch):
    tiny_gguf.write(tmp_path / "vocabulary.gguf")
    contents = open_contents(tmp_path / "vocabulary.gguf")
    contents.tensors.pop("token_embd.weight")
    with pytest.raises(UserError, match="a vocabulary without a model's weights"):
        read_shape(contents)
    monkeypatch.setattr(convert, "available_bytes", lambda: 1 << 10)
    with pytest.raises(UserError, match=r"in blocks of four bits, .* they take 0\.0 GB, and 0\.0 GB"):
        checkpoint(files["llama"])
    out = tmp_path / "there"
    out.mkdir()
    (out / "mine").touch()
    with pytest.raises(UserError, match="is there already"):
        convert.convert(files["llama"], out)


def test_a_name_that_is_not_utf8_is_named(files, tmp_path):
    path = tmp_path / os.fsdecode(b"na\xefve.gguf")
    try:
        path.symlink_to(files["llama"])
    except OSError:
        pytest.skip("this file system holds only names in UTF-8")
    with pytest.raises(UserError, match=r"na.xefve.*a name in this path is not UTF-8: rename it"):
        convert.convert(path, tmp_path / "out")


def test_weights_that_are_no_numbers_are_told_of_the_file(files, tmp_path):
    path = tmp_path / "model.gguf"
    content = bytearray(files["llama"].read_bytes())
    header = open_contents(files["llama"]).headers[0]
    (norm,) = [each for each in header.tensors if each.name == "output_norm.weight"]
    at = header.data_offset + norm.offset
    content[at : at + 4] = np.float32(np.nan).tobytes()
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"^model.gguf: tensor model.norm.weight holds 1 values that are no finite"):
        convert.convert(path, tmp_path / "out")


def test_texts_use_the_vocabulary(files):
    tokenizer = tiny.tokenizer()
    texts = proof.made_texts(tokenizer)
    assert len(texts) == proof.TEXTS
    used = {id for text in texts for id in tokenizer.encode(text)}
    assert len(used) > 0.9 * (tokenizer.vocab_size - len(tokenizer.special_ids))
