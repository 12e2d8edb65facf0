import json
import os
import subprocess
import sys
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


@pytest.mark.parametrize(
    ("arch", "tie"), [("llama", False), ("qwen3", True), ("qwen2", False), ("gemma3", True), ("lfm2", True)]
)
def test_llama_cpps_own_converter_writes_the_same(shared_data, monkeypatch, tmp_path, arch, tie):
    """Needs llama.cpp's source tree: SLM_LLAMA_CPP names it (llama-cpp-python's source package holds one)."""
    source = os.environ.get("SLM_LLAMA_CPP")
    if not source:
        pytest.skip("SLM_LLAMA_CPP does not name a llama.cpp source tree (with convert_hf_to_gguf.py)")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(shared_data / "tiktoken_cache"))
    from slm.data.config import TokenizerConfig
    from slm.data.tokenizers.make import make_tokenizer

    root, shape = tmp_path / "run", {"arch": arch, "tie_embeddings": tie, "d_model": 64, "head_dim": 16}
    folder = root / "checkpoints" / "step-00000010"
    if arch == "gemma3":
        shape |= {"vocab_size": save_gemma_like(folder, tiny.text(30_000)), "n_layers": 7, "sliding_window": 40}
        tiny.run(root, **shape, bos_id=2, eos_id=1, own_tokenizer=True)
    else:
        tiny.run(root, **shape, vocab_size=50_304)
        make_tokenizer(TokenizerConfig(kind="tiktoken", name="gpt2"), lambda: iter([])).save(folder)
    if arch == "qwen2":  # transformers splits as Qwen does for this architecture, whatever the files say
        words = Tokenizer.from_file(str(folder / "tokenizer.json"))
        splits = [pre_tokenizers.Split(Regex(QWEN2), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
        words.pre_tokenizer = pre_tokenizers.Sequence(splits)
        words.save(str(folder / "tokenizer.json"))
    record = export(ExportConfig(threads=1, run=root, quant=["f32"]))
    arguments = [str(folder), "--outtype", "f32", "--outfile", str(tmp_path / "reference.gguf")]
    # It knows Qwen's split rule by the ids of Qwen's own vocabulary only.
    known = "from conversion import base; base.TextModel.get_vocab_base_pre = lambda *_: 'qwen2'; "
    program = (
        f"import runpy, sys; sys.path.insert(0, {source!r}); {known if arch == 'qwen2' else ''}"
        f"sys.argv = ['convert', *{arguments!r}]; "
        f"runpy.run_path({str(Path(source) / 'convert_hf_to_gguf.py')!r}, run_name='__main__')"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=300)
    ours = gguf.GGUFReader(root / "gguf" / record["files"][0]["file"])
    theirs = gguf.GGUFReader(tmp_path / "reference.gguf")
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
    more = ("vocab_size", "rope.dimension_count", "attention.sliding_window_pattern")
    assert set(mine) - set(reference) <= {f"{arch}.{key}" for key in more}
