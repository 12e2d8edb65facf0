"""Whole exports, through the command where a person would use it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from data.errors import UserError
from export.__main__ import main
from export.config import ExportConfig
from export.pipeline import export
from slm.llama.gguf_check import read_header
from tests.helpers import REPOSITORY
from tests.helpers import tiny_checkpoint as tiny


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> tuple[Path, dict]:
    """A run exported to f32 and q4_k_m, through the command."""
    root = tiny.run(tmp_path_factory.mktemp("exported") / "my-run")
    done = command("run=" + str(root), "threads=1", "quant=q4_k_m,f32", "license=apache-2.0")
    assert done.returncode == 0, done.stderr
    return root, json.loads(done.stdout.splitlines()[-1])


def command(*arguments: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "export", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=REPOSITORY,
        **options,
    )


def test_files_names_and_record(exported):
    root, record = exported
    names = sorted(path.name for path in (root / "gguf").iterdir())
    assert names == [
        "export.json",
        "imatrix.gguf",
        "my-run-1.4M-v1.0-F32.gguf",
        "my-run-1.4M-v1.0-Q4_K_M.gguf",
    ]
    assert json.loads((root / "gguf" / "export.json").read_text()) == record
    assert record["published"] is True
    assert [each["type"] for each in record["files"]] == ["f32", "q4_k_m"]
    for each in record["files"]:
        assert each["failures"] == []
        assert each["size_mb"] == pytest.approx((root / "gguf" / each["file"]).stat().st_size / 1e6)
    exact, small = record["files"]
    assert exact["bits_per_weight"] == 32
    assert abs(exact["perplexity_change"]) < 1e-4
    assert exact["kl"] < 1e-6
    assert 4.5 < small["bits_per_weight"] < 5.5
    assert small["kl"] > exact["kl"]


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
    assert metadata["llama.context_length"] == 128
    assert metadata["llama.attention.head_count_kv"] == 2
    assert metadata["tokenizer.ggml.add_bos_token"] is False
    record = json.loads(metadata["slm.config"])
    assert record["checkpoint"] == "step-00000010"
    assert record["config"]["preset"] == "test"
    assert record["model"]["hidden_size"] == 256


def test_the_importance_matrix_gives_llama_cpp_the_same_file(exported, tmp_path):
    """What was written as imatrix.gguf is what was used."""
    from slm.llama.quantize import quantize

    root, _ = exported
    tensors = {t.name: t.data for t in gguf.GGUFReader(root / "gguf" / "imatrix.gguf").tensors}
    matrix = {
        name.removesuffix(".in_sum2"): data / tensors[name.replace(".in_sum2", ".counts")]
        for name, data in tensors.items()
        if name.endswith(".in_sum2")
    }
    quantize(root / "gguf" / "my-run-1.4M-v1.0-F32.gguf", tmp_path / "again.gguf", "q4_k_m", imatrix=matrix)
    assert (tmp_path / "again.gguf").read_bytes() == (root / "gguf" / "my-run-1.4M-v1.0-Q4_K_M.gguf").read_bytes()
    quantize(root / "gguf" / "my-run-1.4M-v1.0-F32.gguf", tmp_path / "without.gguf", "q4_k_m")
    assert (tmp_path / "without.gguf").read_bytes() != (tmp_path / "again.gguf").read_bytes()


LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {"arch": "qwen3", "tie_embeddings": True, "head_dim": 32},
        {"arch": "llama", "tie_embeddings": True, "rope_scaling": LLAMA3, "n_kv_heads": 1},
        {"arch": "qwen3", "tie_embeddings": False, "n_kv_heads": 4},
    ],
)
def test_every_shape_gives_the_checkpoints_logits(tmp_path, changes):
    root = tiny.run(tmp_path / "run", **({"d_model": 96, "n_heads": 4, "head_dim": 24, "ffn_dim": 160} | changes))
    record = export(ExportConfig(threads=1, run=root, quant=["f32", "f16", "bf16"]))
    assert record["published"], record["files"]
    f32, f16, bf16 = (each["kl"] for each in record["files"])
    assert f32 < 1e-8 < f16 < bf16


@pytest.mark.parametrize(("arch", "tie"), [("Llama", False), ("Qwen3", True)])
def test_a_model_saved_by_transformers(tmp_path, capsys, arch, tie):
    """GQA and a width that is no multiple of 256: exports, quantizes with the warning, and loads."""
    import transformers

    words = tiny.tokenizer()
    config = getattr(transformers, f"{arch}Config")(
        vocab_size=words.vocab_size, hidden_size=96, intermediate_size=160, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=24, max_position_embeddings=128,
        tie_word_embeddings=tie, bos_token_id=words.eot_id, eos_token_id=words.eot_id, pad_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    model = getattr(transformers, f"{arch}ForCausalLM")(config)
    tiny.randomize(model)
    folder = tmp_path / "Tiny-Model-Base"
    model.save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=words._backend, bos_token="<|endoftext|>", eos_token="<|endoftext|>"
    ).save_pretrained(folder)
    calibration = tmp_path / "text.txt"
    calibration.write_text(tiny.text(20_000), encoding="utf-8")
    options = [
        "quant=q4_k_m,f16",
        f"out={tmp_path / 'out'}",
        f"calibration.text={calibration}",
        "name=small",
        "threads=1",
    ]
    assert main([f"run={folder}", *options]) == 0
    said = capsys.readouterr().out
    assert re.search(r"warning: q4_k_m: \d+ matrices have rows that are not multiples of 256", said)
    record = json.loads(said.splitlines()[-1])
    assert {each["type"] for each in record["files"]} == {"f16", "q4_k_m"}
    assert record["files"][0]["file"].startswith("small-")
    from slm.llama.model import Model

    with Model(tmp_path / "out" / record["files"][1]["file"]) as llama:
        assert llama.n_ctx_train == 128


@pytest.mark.parametrize("bare", [False, True])
def test_a_sentencepiece_model(tmp_path, bare):
    """With its tokenizer.model, and with only the tokenizer.json made of it (as published copies often come)."""
    import sentencepiece

    from data.tokenizers.make import load_tokenizer

    corpus = tmp_path / "corpus.txt"
    corpus.write_text(tiny.text(30_000), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(tmp_path / "words"), vocab_size=340, model_type="bpe",
        byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=3,
    )  # fmt: skip
    root = tiny.run(tmp_path / "run")
    folder = root / "checkpoints" / "step-00000010"
    load_tokenizer(tmp_path / "words.model").save(folder)
    if bare:
        (folder / "tokenizer.model").unlink()
    record = export(ExportConfig(threads=1, run=root, quant=["f32"]))
    assert record["published"], record["files"]
    assert record["tokenizer"] == {"model": "llama", "pre": "default"}


def test_without_any_text_the_embedded_stories_serve_and_it_is_said(tmp_path, capsys):
    pytest.importorskip("data.tales")
    folder = tiny.checkpoint(tmp_path / "bare")
    assert main([f"run={folder}", "quant=q8_0", "threads=1", "calibration.chunks=2", "proof.chunks=2"]) == 0
    assert "using the embedded stories" in capsys.readouterr().out


def change_weight(root: Path, name: str, value: float) -> None:
    from safetensors.torch import load_file, save_file

    path = root / "checkpoints" / "step-00000010" / "model.safetensors"
    weights = load_file(path)
    weights[name][1, 2] = value
    save_file(weights, path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_broken_weights_are_refused_by_name(tmp_path, value):
    root = tiny.run(tmp_path / "run")
    change_weight(root, "model.layers.1.mlp.up_proj.weight", value)
    with pytest.raises(UserError, match=r"model.layers.1.mlp.up_proj.weight"):
        export(ExportConfig(threads=1, run=root))
    assert not (root / "gguf").exists()


def test_a_pickle_is_refused_and_never_run(tmp_path):
    folder = tiny.checkpoint(tmp_path / "pickled")
    (folder / "model.safetensors").unlink()
    marker = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return (os.system, (f"touch {marker}",))

    torch.save(Evil(), folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="pickle"):
        export(ExportConfig(threads=1, run=folder))
    assert not marker.exists()


def test_a_full_disk_leaves_nothing_and_says_how_much_was_needed(tmp_path):
    """A limit on file size stands in for a full disk: writes fail in the middle in the same way."""
    root = tiny.run(tmp_path / "run")
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))"
    script = f"{limit}; import runpy, sys; sys.argv = ['export', 'run={root}', 'quant=f32']; "
    done = subprocess.run(
        [sys.executable, "-c", script + "runpy.run_module('export', run_name='__main__')"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=REPOSITORY,
    )
    assert done.returncode == 2, done.stderr
    assert re.search(r"error: .*F32.gguf could not be written \(.*[\d,]+ bytes", done.stderr)
    assert "Traceback" not in done.stderr
    assert list((root / "gguf").iterdir()) == []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_export_leaves_no_file_under_a_final_name(tmp_path, how):
    root = tiny.run(tmp_path / "run")
    child = subprocess.Popen(
        [sys.executable, "-m", "export", f"run={root}", "quant=f32,q4_k_m"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=REPOSITORY,
    )
    out = root / "gguf"
    until = time.monotonic() + 120
    while time.monotonic() < until and not list(out.glob(".export-*/*.gguf")):
        time.sleep(0.005)
    child.send_signal(how)
    child.wait(60)
    left = [path.name for path in out.iterdir()]
    if how == signal.SIGTERM:
        assert child.returncode == 128 + signal.SIGTERM
        assert left == []
    else:
        assert left == [f".export-{child.pid}"]
        export(ExportConfig(threads=1, run=root, quant=["f16"]))
        assert sorted(path.name for path in out.iterdir()) == ["export.json", "run-1.4M-v1.0-F16.gguf"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["quant=q4km"], "did you mean 'q4_k_m'"),
        (["base=f8"], "base=f8"),
        (["calibration.text=/nowhere.txt"], "/nowhere.txt cannot be read"),
        (["qaunt=f16"], "did you mean 'quant'"),
        (["proof.text=EMPTY"], "is empty"),
        (["proof.text=LATIN"], "is not UTF-8"),
    ],
)
def test_mistakes_are_one_line(tmp_path, options, message):
    root = tiny.run(tmp_path / "run")
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    files = {"EMPTY": str(tmp_path / "empty.txt"), "LATIN": str(tmp_path / "latin.txt")}
    options = [re.sub("EMPTY|LATIN", lambda m: files[m.group()], option) for option in options]
    with pytest.raises(UserError) as caught:
        main([f"run={root}", "threads=1", *options])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (root / "gguf").exists()


@pytest.mark.parametrize(("arch", "tie"), [("llama", False), ("qwen3", True)])
def test_llama_cpps_own_converter_writes_the_same(shared_data, monkeypatch, tmp_path, arch, tie):
    """Needs llama.cpp's source tree: SLM_LLAMA_CPP names it (llama-cpp-python's source package holds one)."""
    source = os.environ.get("SLM_LLAMA_CPP")
    if not source:
        pytest.skip("SLM_LLAMA_CPP does not name a llama.cpp source tree (with convert_hf_to_gguf.py)")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(shared_data / "tiktoken_cache"))
    from data.config import TokenizerConfig
    from data.tokenizers.make import make_tokenizer

    root = tiny.run(tmp_path / "run", arch=arch, tie_embeddings=tie, vocab_size=50_304, d_model=64, head_dim=16)
    folder = root / "checkpoints" / "step-00000010"
    make_tokenizer(TokenizerConfig(kind="tiktoken", name="gpt2"), lambda: iter([])).save(folder)
    record = export(ExportConfig(threads=1, run=root, quant=["f32"]))
    subprocess.run(
        [sys.executable, Path(source) / "convert_hf_to_gguf.py", folder, "--outtype", "f32", "--outfile",
         tmp_path / "reference.gguf"],
        check=True, capture_output=True, timeout=300,
    )  # fmt: skip
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
    # Only what the converter leaves out for Qwen3, and writes for Llama.
    assert set(mine) - set(reference) <= {"qwen3.vocab_size", "qwen3.rope.dimension_count"}
