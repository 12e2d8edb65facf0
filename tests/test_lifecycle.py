"""Text in, a served quantized model out: the commands a person types, one after the other."""

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from data.tales.story import story

pytestmark = pytest.mark.slow

ENVIRONMENT = os.environ | {"PYTHONUNBUFFERED": "1"}


def command(repository: Path, *arguments: str, status: int = 0) -> str:
    """Run ``python -m ...`` to its end and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=repository,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout if status == 0 else done.stderr


def last_json(out: str):
    return json.loads(out.strip().splitlines()[-1])


def post(port: int, path: str, body: dict) -> dict:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


class Server:
    """``python -m serve`` on a free port, up when the block is entered."""

    def __init__(self, repository: Path, model: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "serve", f"model={model}", f"port={self.port}"], cwd=repository, env=ENVIRONMENT
        )

    def __enter__(self) -> "Server":
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            assert self.process.poll() is None, "the server ended"
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5) as answer:
                    if answer.status == 200:
                        return self
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        raise AssertionError("the server did not come up within a minute")

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.status = self.process.wait(timeout=30)


@pytest.fixture(scope="module")
def stories(repository, tmp_path_factory) -> Path:
    """A run of the tiny preset, cut short."""
    folder = tmp_path_factory.mktemp("runs")
    command(
        repository,
        "train",
        "preset=tiny",
        "name=stories",
        f"runs_dir={folder}",
        "train.max_steps=100",
        "train.micro_batch=8",
        "train.compile=false",
        "train.eval_every=100",
        "train.eval_blocks=8",
        "tokenizer.sample_bytes=2000000",
    )
    return folder / "stories"


@pytest.fixture(scope="module")
def exported(repository, stories) -> dict:
    out = command(repository, "export", f"run={stories}", "quant=f32,q8_0,q4_k_m")
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


def test_evaluation_agrees_between_the_engines(repository, stories, exported):
    rows = last_json(
        command(
            repository,
            "slm.evaluate",
            f"run={stories}",
            f"eval.text={stories / 'validation.txt'}",
            "eval.max_tokens=3000",
        )
    )
    keys = {"file", "engine", "definition", "perplexity", "stderr", "word_perplexity", "bits_per_byte", "tokens"}
    assert all(set(row) == keys for row in rows)
    torch_rows = {row["definition"]: row["perplexity"] for row in rows if row["engine"] == "torch"}
    f32_rows = {row["definition"]: row["perplexity"] for row in rows if "F32" in row["file"]}
    assert len(torch_rows) == 2
    assert torch_rows.keys() == f32_rows.keys()
    for definition, perplexity in torch_rows.items():
        assert f32_rows[definition] == pytest.approx(perplexity, rel=1e-3)


def test_the_model_is_served_and_speaks_like_its_text(repository, stories, exported):
    with Server(repository, stories) as server:
        body = {"model": "default", "prompt": "Once upon a time", "max_tokens": 24, "temperature": 0}
        first, second = (post(server.port, "/v1/completions", body) for _ in range(2))
        assert first["choices"][0]["text"] == second["choices"][0]["text"]
        assert first["usage"]["completion_tokens"] <= 24
        words = re.findall(r"[A-Za-z]+", first["choices"][0]["text"])
        known = set(re.findall(r"[A-Za-z]+", " ".join(story(0, index) for index in range(300))))
        assert len(words) > 8
        assert sum(word in known for word in words) >= 0.8 * len(words), words
    assert server.status == 0


def test_the_terminal_prints_a_story_and_its_speed(repository, stories, exported):
    out = command(
        repository, "serve.terminal", f"model={stories}", "prompt=Once upon a time", "max_tokens=24", "seed=1"
    )
    assert out.startswith("Once upon a time")
    assert "tokens/s" in out


@pytest.mark.parametrize("kind", ["Llama", "Qwen3"])
def test_a_model_from_elsewhere_is_exported_quantized_and_served(kind, repository, stories, tmp_path):
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
    out = command(repository, "export", f"run={folder}", "quant=q4_k_m", "calibration.chunks=4")
    assert "warning" in out
    assert "multiple" in out
    assert last_json(out)["published"]
    with Server(repository, folder) as server:
        answer = post(server.port, "/v1/completions", {"prompt": "The fox", "max_tokens": 5, "temperature": 0})
        assert answer["usage"]["completion_tokens"] >= 1


def test_wrong_names_are_one_line_with_the_nearest(repository, stories):
    for arguments, says in (
        (("export", f"run={stories}", "quant=q4_k_n"), "q4_k_m"),
        (("export", f"run={stories}x"), "stories"),
        (("serve", f"model={stories}/nothing.gguf"), "nothing.gguf"),
        (("slm.evaluate", f"run={stories}", "eval.text=/nowhere.txt"), "/nowhere.txt"),
        (("slm.evaluate", f"run={stories}", "eval.txt=a"), "eval.text"),
    ):
        err = command(repository, *arguments, status=2)
        assert says in err, err
        assert len(err.strip().splitlines()) == 1, err
