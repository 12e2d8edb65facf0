import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, pre_tokenizers

from slm.export.config import ExportConfig, Naming
from slm.export.gguf.writer import identify_model
from slm.export.pipeline import export
from slm.llama.gguf_check import read_header
from slm.runs import Run
from tests.helpers import converter
from tests.helpers import tiny_checkpoint as tiny
from tests.helpers.tokenizers import save_gemma_like

QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def test_standard_metadata(exported):
    root, _ = exported
    metadata = read_header(root / "gguf" / "my-run-1.4M-v1.0-Q4_K_M.gguf").metadata
    assert metadata["general.architecture"] == "llama"
    assert metadata["general.type"] == "model"
    assert metadata["general.name"] == metadata["general.basename"] == "my-run"
    assert metadata["general.size_label"] == "1.4M"
    assert metadata["general.version"] == "v1.0"
    assert metadata["general.license"] == "apache-2.0"
    assert metadata["general.quantization_version"] == 2
    assert metadata["general.file_type"] == 15
    assert round(metadata["general.sampling.temp"], 6) == 0.8  # of generation_config.json
    assert metadata["llama.context_length"] == 128
    assert metadata["llama.attention.head_count_kv"] == 2
    assert metadata["tokenizer.ggml.add_bos_token"] is False
    record = json.loads(metadata["slm.config"])
    assert record["checkpoint"] == "step-00000010"
    assert record["config"]["preset"] == "test"
    assert record["model"]["hidden_size"] == 256


@pytest.mark.parametrize("is_hf", [False, True])
def test_a_models_own_sampling(tmp_path, is_hf):
    def kept(text):
        (tmp_path / "generation_config.json").write_text(text)
        metadata = identify_model(Naming(), Run(tmp_path, is_hf=is_hf), tmp_path, 1000).metadata
        names = ("temp", "top_k", "top_p", "min_p", "penalty_repeat")
        return {name: getattr(metadata, f"sampling_{name}") for name in names}

    given = {"temperature": 1, "top_k": 20, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.1, "do_sample": True}
    assert kept(json.dumps(given)) == {"temp": 1.0, "top_k": 20, "top_p": 0.9, "min_p": 0.1, "penalty_repeat": 1.1}
    none = dict.fromkeys(("temp", "top_k", "top_p", "min_p", "penalty_repeat"))
    assert kept('{"top_k": null, "top_p": "x"}') == none
    assert kept('{"do_sample": false, "temperature": 0.7}') == {**none, "temp": 0.0}


PARITY = {
    "llama": False,
    "qwen3": True,
    "qwen2": False,
    "gemma2": True,
    "gemma3": True,
    "lfm2": True,
    "smollm3": True,
    "granite": False,
    "exaone4": True,
    "olmo2": False,
    "olmo3": False,
    "phi": False,
    "phi-4": True,
}
"""By model, whether the head is tied."""


LLAMA3 = dict(factor=16.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
MORE = {
    "phi": dict(arch="phi3"),  # llama.cpp wants certain tokens of one that is called phi3
    "phi-4": dict(
        arch="phi3",
        rotary_dim=12,
        rope_scaling=dict(
            rope_type="longrope",
            original_max_position_embeddings=32,
            short_factor=[1.0, 1.1, 1.2, 1.4, 1.7, 2.0],
            long_factor=[1.0, 1.2, 2.0, 4.0, 9.0, 20.0],
        ),
    ),
    "olmo3": dict(
        arch="olmo2",
        n_layers=5,
        sliding_window=40,
        rope_theta=5e5,
        rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32),
    ),
    "smollm3": dict(n_layers=4),
    "granite": dict(
        embedding_multiplier=12.0, attention_multiplier=0.0156, residual_multiplier=0.22, logits_scaling=8.0
    ),
    "exaone4": dict(rope_theta=1e6, rope_scaling=dict(rope_type="llama3", **LLAMA3)),
}


@pytest.fixture(scope="module")
def converted(tmp_path_factory) -> dict[str, tuple[Path, Path]]:
    """By model, the file that is exported and the one that llama.cpp's converter makes of its checkpoint."""
    base = tmp_path_factory.mktemp("converted")
    files, jobs, pre = {}, {}, {}
    for arch, tie in PARITY.items():
        root, shape = base / arch, {"arch": arch, "tie_embeddings": tie, "d_model": 64, "head_dim": 16, "ffn_dim": 96}
        folder = root / "checkpoints" / "step-00000010"
        if arch in ("gemma2", "gemma3"):
            layers = 4 if arch == "gemma2" else 7
            rows = save_gemma_like(folder, tiny.text(30_000))
            shape |= {"vocab_size": rows, "n_layers": layers, "sliding_window": 40}
            tiny.run(root, **shape, bos_id=2, eos_id=1, own_tokenizer=True)
        else:
            tiny.run(root, **shape | MORE.get(arch, {}))
            pre[folder] = "gpt-2"  # the converter knows published vocabularies only
        if arch == "qwen2":  # transformers splits as Qwen does for this architecture, whatever the files say
            words = Tokenizer.from_file(str(folder / "tokenizer.json"))
            splits = [pre_tokenizers.Split(Regex(QWEN2), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
            words.pre_tokenizer = pre_tokenizers.Sequence(splits)
            words.save(str(folder / "tokenizer.json"))
            pre[folder] = "qwen2"
        record = export(ExportConfig(threads=1, run=root, quant=["f32"]))
        files[arch] = (root / "gguf" / record["files"][0]["file"], base / f"{arch}.gguf")
        jobs[folder] = files[arch][1]
        if arch.startswith("phi"):  # the converter goes by the name of the class
            settings = folder / "tokenizer_config.json"
            settings.write_text(json.dumps(json.loads(settings.read_text()) | {"tokenizer_class": "GPT2Tokenizer"}))
    converter.convert(jobs, base, pre=pre)
    return files


@pytest.mark.parametrize("arch", PARITY)
def test_llama_cpps_own_converter_writes_the_same(converted, arch):
    ours, theirs = (gguf.GGUFReader(path) for path in converted[arch])
    ours_by_name, theirs_by_name = ({t.name: t for t in each.tensors} for each in (ours, theirs))
    assert set(ours_by_name) == set(theirs_by_name)
    for name, tensor in theirs_by_name.items():
        assert ours_by_name[name].tensor_type == tensor.tensor_type
        assert np.array_equal(ours_by_name[name].data.view(np.uint8), tensor.data.view(np.uint8)), name

    def fields(reader: gguf.GGUFReader) -> dict:
        named = ("general.name", "general.basename", "general.version", "GGUF.", "slm.", "general.size_label")
        return {k: (f.types, f.contents()) for k, f in reader.fields.items() if not k.startswith(named)}

    mine, reference = fields(ours), fields(theirs)
    assert {key: mine.get(key) for key in reference} == reference
    # Only what the converter leaves out for Qwen and writes for Llama, and what it leaves to llama.cpp's default.
    kind = reference["general.architecture"][1]
    more = ["vocab_size", "rope.dimension_count", "attention.sliding_window_pattern"]
    if kind in ("granite", "phi3"):  # its heads together are as wide as the model
        more += ["attention.key_length", "attention.value_length"]
    if kind == "gemma2":  # llama.cpp's default is this file's, too
        more += ["rope.freq_base"]
    assert set(mine) - set(reference) <= {f"{kind}.{key}" for key in more}
