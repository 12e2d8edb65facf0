"""Whole exports, through the command where a person would use it."""

import functools
import json
import re
import signal
import sys
import time

import pytest
import torch
import torch.nn.functional as F

from slm.data.errors import UserError
from slm.export.__main__ import main, next_line
from slm.export.config import ExportConfig
from slm.export.pipeline import export
from slm.llama.gguf_check import read_header
from tests.helpers import export_faults, programs
from tests.helpers import tiny_checkpoint as tiny
from tests.helpers.tokenizers import save_gemma_like


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
    assert [each["step"] for each in record["steps"]] == [
        *("loading PyTorch", "reading the checkpoint", "conversion to f32", "proof: the checkpoint's side"),
        *("proof: f32", "importance matrix", "quantization: q4_k_m", "proof: q4_k_m", "check sums and publishing"),
    ]
    assert all(each["seconds"] >= 0 and each["peak_rss_mb"] > 10 for each in record["steps"])
    assert record["seconds"] == pytest.approx(sum(each["seconds"] for each in record["steps"]))
    exact, small = record["files"]
    assert exact["bits_per_weight"] == 32
    assert abs(exact["perplexity_change"]) < 1e-4
    assert exact["kl"] < 1e-6
    assert 4.5 < small["bits_per_weight"] < 5.5
    assert small["kl"] > exact["kl"]


LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
# The proof's windows of 128 tokens are beyond the original context.
LONG_ROPE = {
    "rope_type": "longrope", "original_max_position_embeddings": 32, "factor": 4.0,
    "short_factor": [1.0, 1.1, 1.2, 1.4, 1.7, 2.0, 2.5, 3.0],
    "long_factor": [1.0, 1.2, 2.0, 4.0, 9.0, 20.0, 40.0, 64.0],
}  # fmt: skip
GEMMA = {"arch": "gemma3", "tie_embeddings": True, "rope_theta": 1e6, "n_layers": 4}
GEMMA2 = {"arch": "gemma2", "tie_embeddings": True}


@pytest.mark.parametrize(
    "changes",
    [
        {"arch": "qwen3", "tie_embeddings": True, "head_dim": 32},
        {"arch": "llama", "tie_embeddings": True, "rope_scaling": LLAMA3, "n_kv_heads": 1},
        {"arch": "qwen3", "tie_embeddings": False, "n_kv_heads": 4},
        {"arch": "qwen2", "tie_embeddings": True},
        {"arch": "lfm2", "tie_embeddings": True, "n_layers": 3},
        {"arch": "lfm2", "tie_embeddings": False, "n_kv_heads": 4, "conv_layers": (False, True), "conv_width": 5},
        GEMMA | {"sliding_window": 40, "local_layers": (True, True, False, True)},
        # Six layers end with the first global one. A seventh makes one position of these random weights so sensitive
        # that f16 moves a logit by 4.0 % of their root mean square, with AMX by 5.2 (5 are allowed).
        GEMMA | {"sliding_window": 24, "n_layers": 6, "local_rope_theta": 5_000.0},
        GEMMA | {"sliding_window": None, "tie_embeddings": False},
        {"arch": "phi3", "tie_embeddings": False},
        {"arch": "phi3", "tie_embeddings": True, "n_layers": 3, "rotary_dim": 16, "rope_scaling": LONG_ROPE},
        {"arch": "olmo2", "n_layers": 4, "sliding_window": 40, "rope_theta": 5e5, "rope_scaling": YARN},
        GEMMA2 | {"sliding_window": 40, "attention_cap": 4.0, "logit_cap": 6.0},
        GEMMA2 | {"local_layers": (False, True), "sliding_window": 24, "n_kv_heads": 1},
        GEMMA2 | {"sliding_window": None},
    ],
)
def test_every_shape_gives_the_checkpoints_logits(tmp_path, monkeypatch, changes):
    if changes["arch"] in ("gemma2", "gemma3"):
        monkeypatch.setattr(F, "gelu", ggmls_gelu)
    root = tiny.run(tmp_path / "run", **({"d_model": 96, "n_heads": 4, "head_dim": 24, "ffn_dim": 160} | changes))
    record = export(ExportConfig(threads=1, run=root, quant=["f32", "f16", "bf16"]))
    assert record["published"], record["files"]
    f32, f16, bf16 = (each["kl"] for each in record["files"])
    assert f32 < (1e-8 if changes["arch"] != "gemma3" else 1e-6) < f16 < bf16


def test_factors_of_long_rope_that_the_proof_does_not_reach_are_named(tmp_path):
    said: list[str] = []
    scaling = LONG_ROPE | {"original_max_position_embeddings": 512}
    shape = {"d_model": 96, "head_dim": 24, "ffn_dim": 160, "rotary_dim": 16, "seq_len": 2048}
    root = tiny.run(tmp_path / "run", arch="phi3", rope_scaling=scaling, **shape)
    record = export(ExportConfig(threads=1, run=root, quant=["f32"]), said.append)
    assert record["published"]
    assert record["files"][0]["kl"] < 1e-8
    assert sum("the proof compares contexts of up to 512 tokens (the short factors)" in line for line in said) == 1


def ggmls_gelu(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """GELU by ggml's table: of x rounded to f16, and rounded to f16 (a sum in another order may round otherwise)."""
    assert approximate == "tanh"
    h = x.half().float()
    gelu = 0.5 * h * (1 + torch.tanh(0.79788456 * h * (1 + 0.044715 * h * h)))
    return torch.where(x <= -10, 0.0, torch.where(x >= 10, x, gelu.half().float()))


@pytest.mark.parametrize(
    ("arch", "tie"),
    [("Llama", False), ("Qwen3", True), ("Qwen2", True), ("Gemma2", True), ("Gemma3Text", True), ("Lfm2", True)],
)
def test_a_model_saved_by_transformers(tmp_path, capsys, arch, tie):
    """GQA and a width that is no multiple of 256: exports, quantizes with the warning, and loads."""
    import transformers

    words = tiny.tokenizer()
    config = getattr(transformers, f"{arch}Config")(
        vocab_size=words.vocab_size, hidden_size=96, intermediate_size=160, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=24, max_position_embeddings=128,
        tie_word_embeddings=tie, bos_token_id=words.eot_id, eos_token_id=words.eot_id, pad_token_id=None,
        **({"query_pre_attn_scalar": 24, "sliding_window": 40} if arch.startswith("Gemma") else {}),
        **({"layer_types": ["conv", "full_attention"]} if arch == "Lfm2" else {}),
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
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
    assert re.search(r"importance matrix: \d+ chunks of .* text.txt, 4 of them measured with the proof", said)
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

    from slm.data.tokenizers.make import load_tokenizer

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


def test_a_gemma_model_with_its_kind_of_tokenizer(tmp_path):
    """<bos> before each text, a token without a row, quantized with an importance matrix."""
    root = tmp_path / "run"
    folder = root / "checkpoints" / "step-00000010"
    n_pieces = save_gemma_like(folder, tiny.text(30_000))
    tiny.run(root, **GEMMA, sliding_window=40, vocab_size=n_pieces, bos_id=2, eos_id=1, own_tokenizer=True)
    said: list[str] = []
    record = export(ExportConfig(threads=1, run=root, quant=["f32", "q4_k_m"]), said.append)
    assert record["published"], record["files"]
    assert record["tokenizer"] == {"model": "llama", "pre": "default"}
    assert any("no row for <image_soft_token>" in line for line in said)
    header = read_header(root / "gguf" / record["files"][1]["file"]).metadata
    assert header["general.architecture"] == "gemma3"
    assert header["gemma3.attention.sliding_window"] == 40
    assert header["tokenizer.ggml.add_bos_token"] is True


def test_a_full_disk_leaves_nothing_and_says_how_much_was_needed(tmp_path):
    """A limit on file size stands in for a full disk: writes fail in the middle in the same way."""
    root = tiny.run(tmp_path / "run")
    limit = functools.partial(export_faults.limit_file_size, 2_000_000)
    error = programs.run("slm.export", [f"run={root}", "quant=f32"], tmp_path, status=2, prepare=limit)
    assert re.search(r"error: .*F32.gguf could not be written \(.*[\d,]+ bytes", error)
    assert "Traceback" not in error
    assert list((root / "gguf").iterdir()) == []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_export_leaves_no_file_under_a_final_name(tmp_path, how):
    root = tiny.run(tmp_path / "run")
    child = programs.Program("slm.export", [f"run={root}", "quant=f32,q8_0,q6_k,q5_k_m,q4_k_m"], tmp_path)
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


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the export is not watched elsewhere")
@pytest.mark.parametrize(
    ("module", "function", "says"),
    [
        ("slm.llama.quantize", "llama_model_quantize", "while quantizing run-1.4M-v1.0-F32.gguf to q4_k_m"),
        ("slm.llama.model", "llama_model_load_from_file", "while loading run-1.4M-v1.0-F32.gguf"),
        ("slm.llama.context", "llama_decode", "while comparing run-1.4M-v1.0-F32.gguf with its checkpoint"),
    ],
)
def test_a_crash_of_llama_cpp_is_one_line_and_leaves_nothing(tmp_path, module, function, says):
    root = tiny.run(tmp_path / "run")
    crash = functools.partial(export_faults.crash_in, module, function)
    words = [f"run={root}", "quant=q4_k_m", "base=f32"]
    error = programs.run("slm.export", words, tmp_path, status=128 + signal.SIGSEGV, prepare=crash)
    (line,) = [each for each in error.splitlines() if each.startswith("error")]
    assert line.startswith(f"error: native code died with SIGSEGV {says}; ")
    assert "-m slm.llama.rebuild builds llama.cpp again" in line
    assert "Traceback" not in error
    assert list((root / "gguf").iterdir()) == []


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


def test_a_runs_questions_are_asked_of_its_files_by_a_command_that_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLM_MAKE", raising=False)
    out = tmp_path / "runs" / "mine" / "gguf"
    out.mkdir(parents=True)
    assert next_line(out) == "next: slm serve runs/mine    or: slm chat runs/mine"
    (out.parent / "questions.jsonl").touch()
    assert next_line(out).endswith(
        "\nthe run's questions, asked of each file: slm exam runs/mine runs/mine/questions.jsonl"
    )
