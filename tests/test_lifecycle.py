"""Text in, a served quantized model out: the commands a person types, one after the other."""

import json
import re
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from slm.data.tales.story import story
from slm.data.tokenizers.make import load_tokenizer
from tests.helpers import programs
from tests.helpers.servers import Server, running_server
from tests.helpers.small_run import SmallRun, write_corpus

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def command(tmp_path_factory) -> Callable[..., str]:
    """Runs ``python -m MODULE WORDS`` to its end and returns what it printed, or its errors."""
    folder = tmp_path_factory.mktemp("output")
    return lambda module, *words, status=0: programs.run(module, list(words), folder, status=status, timeout=300)


def last_json(out: str):
    return json.loads(out.strip().splitlines()[-1])


def post(server: Server, path: str, body: dict) -> dict:
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


@pytest.fixture(scope="module")
def stories(command, tmp_path_factory) -> Path:
    """A run of the tiny preset, with fewer layers and cut short."""
    folder = tmp_path_factory.mktemp("runs")
    command(
        "train",
        "preset=tiny",
        "name=stories",
        f"runs_dir={folder}",
        "model.n_layers=2",
        "train.max_steps=60",
        "train.seq_len=128",
        "train.micro_batch=12",
        "train.eval_every=60",
        "train.eval_blocks=8",
        "tokenizer.sample_bytes=500000",
    )
    return folder / "stories"


@pytest.fixture(scope="module")
def exported(command, stories) -> dict:
    out = command("export", f"run={stories}", "quant=f32,q8_0,q4_k_m", "calibration.chunks=8", "proof.chunks=4")
    return last_json(out)


def test_training_learns_the_stories(stories):
    records = [json.loads(line) for line in (stories / "metrics.jsonl").read_text().splitlines()]
    (validation,) = [record for record in records if "val_loss" in record]
    assert validation["val_loss"] < 3.0  # 7.6 at the start
    assert 0 < validation["val_bits_per_byte"] < 1.2


def test_export_is_proven(stories, exported):
    assert exported["published"]
    by_type = {row["type"]: row for row in exported["files"]}
    assert set(by_type) == {"f32", "q8_0", "q4_k_m"}
    assert abs(by_type["f32"]["perplexity_change"]) < 1e-5
    assert by_type["f32"]["max_abs"] < 1e-3
    assert abs(by_type["q8_0"]["perplexity_change"]) < 0.01
    assert by_type["q4_k_m"]["bits_per_weight"] < 5.6
    for row in exported["files"]:
        assert (stories / "gguf" / row["file"]).is_file()


def test_evaluation_agrees_between_the_engines(command, stories, exported):
    words = (f"run={stories}", f"eval.text={stories / 'validation.txt'}", "eval.max_tokens=1000")
    rows = last_json(command("slm.evaluate", *words))
    keys = {"file", "engine", "definition", "perplexity", "stderr", "word_perplexity", "bits_per_byte", "tokens"}
    assert all(set(row) == keys for row in rows)
    torch_rows = {row["definition"]: row["perplexity"] for row in rows if row["engine"] == "torch"}
    f32_rows = {row["definition"]: row["perplexity"] for row in rows if "F32" in row["file"]}
    assert len(torch_rows) == 2
    assert torch_rows.keys() == f32_rows.keys()
    for definition, perplexity in torch_rows.items():
        assert f32_rows[definition] == pytest.approx(perplexity, rel=1e-3)


def test_the_model_is_served_and_speaks_like_its_text(stories, exported, tmp_path):
    with running_server(tmp_path / "server.log", stories) as server:
        body = {"model": "default", "prompt": "Once upon a time", "max_tokens": 24, "min_tokens": 24, "temperature": 0}
        first, second = (post(server, "/v1/completions", body) for _ in range(2))
        assert first["choices"][0]["text"] == second["choices"][0]["text"]
        assert first["usage"]["completion_tokens"] <= 24
        words = re.findall(r"[A-Za-z]+", first["choices"][0]["text"])
        known = set(re.findall(r"[A-Za-z]+", " ".join(story(0, index) for index in range(300))))
        assert len(words) > 8, first["choices"][0]
        assert sum(word in known for word in words) >= 0.8 * len(words), words
    assert server.process.poll() == 0


def test_the_terminal_prints_a_story_and_its_speed(command, stories, exported):
    out = command("slm.serve.terminal", f"model={stories}", "prompt=Once upon a time", "max_tokens=24", "seed=1")
    assert out.startswith("Once upon a time")
    assert "tokens/s" in out


@pytest.mark.parametrize("kind", ["Llama", "Qwen3"])
def test_a_model_from_elsewhere_is_exported_quantized_and_served(kind, command, stories, tmp_path):
    """Made by transformers, grouped-query attention, a width that is not a multiple of 256."""
    import transformers

    folder = tmp_path / f"{kind.lower()}-from-elsewhere"
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=2048,
        hidden_size=192,
        intermediate_size=320,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        bos_token_id=0,
        eos_token_id=0,
    )
    getattr(transformers, f"{kind}ForCausalLM")(config).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(stories / "tokenizer").save_pretrained(folder)
    out = command("export", f"run={folder}", "quant=q4_k_m", "calibration.chunks=4", "proof.chunks=2")
    assert "warning" in out
    assert "multiple" in out
    assert last_json(out)["published"]
    with running_server(tmp_path / "server.log", folder) as server:
        answer = post(server, "/v1/completions", {"prompt": "The fox", "max_tokens": 5, "temperature": 0})
        assert answer["usage"]["completion_tokens"] >= 1


def test_wrong_names_are_one_line_with_the_nearest(command, stories):
    for arguments, says in (
        (("export", f"run={stories}", "quant=q4_k_n"), "q4_k_m"),
        (("export", f"run={stories}x"), "stories"),
        (("serve", f"model={stories}/nothing.gguf"), "nothing.gguf"),
        (("slm.evaluate", f"run={stories}", "eval.text=/nowhere.txt"), "/nowhere.txt"),
        (("slm.evaluate", f"run={stories}", "eval.txt=a"), "eval.text"),
    ):
        err = command(*arguments, status=2)
        assert says in err, err
        assert len(err.strip().splitlines()) == 1, err


TRAINED = (
    ("sentencepiece", "llama", "the cat sat on 🦙 Ж"),  # byte fallback
    ("unigram", "t5", "the cat  sat on\na hill"),
)


@pytest.mark.parametrize(("kind", "model", "text"), TRAINED, ids=[each[0] for each in TRAINED])
def test_a_tokenizer_over_characters_goes_all_the_way(command, tmp_path, kind, model, text):
    """Trained here, in the checkpoint, in the exported file (its proof compares ids), and in the server's counts."""
    corpus = write_corpus(tmp_path / "corpus.jsonl")
    words = (f"tokenizer={kind}", "tokenizer.vocab_size=400", "train.max_steps=2", f"data.files={corpus}")
    run = SmallRun(tmp_path / "runs", *words).finish()
    record = last_json(command("export", f"run={run.root}", "quant=f32"))
    assert record["published"]
    assert record["tokenizer"] == {"model": model, "pre": "default"}
    (checkpoint,) = (run.root / "checkpoints").iterdir()
    with running_server(tmp_path / "server.log", run.root) as server:
        found = post(server, "/tokenize", {"content": text})["tokens"]
        assert found == load_tokenizer(checkpoint).encode(text)
        assert post(server, "/detokenize", {"tokens": found})["content"] == text
