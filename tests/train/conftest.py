"""A small corpus and a small model, so that a whole run takes seconds."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SMALL = (
    "preset=tiny",
    "data=local",
    "data.shuffle_buffer=16",
    "tokenizer.vocab_size=300",
    "model.n_layers=1",
    "model.d_model=256",
    "model.n_heads=4",
    "model.n_kv_heads=2",
    "model.ffn_dim=256",
    "train.seq_len=32",
    "train.micro_batch=4",
    "train.eval_blocks=4",
    "train.log_every=1",
    "train.compile=false",
    "train.precision=f32",
    "train.threads=1",
    "train.sample_tokens=4",
    "optim.warmup_steps=2",
)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """A JSON Lines file of a few hundred short documents."""
    chance = random.Random(11)
    words = [
        "the",
        "a",
        "cat",
        "dog",
        "sat",
        "ran",
        "on",
        "mat",
        "hill",
        "and",
        "saw",
        "big",
        "small",
        "red",
        "ball",
        "house",
        "then",
        "slept",
        "ate",
        "found",
        "tree",
    ]
    path = tmp_path_factory.mktemp("corpus") / "documents.jsonl"
    lines = [json.dumps({"text": " ".join(chance.choices(words, k=chance.randint(20, 60)))}) for _ in range(400)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def command(corpus, tmp_path):
    """The arguments of a small run whose directory is under ``tmp_path``."""

    def arguments(*overrides: str) -> list[str]:
        return [*SMALL, f"data.files=[{corpus}]", f"runs_dir={tmp_path}/runs", *overrides]

    return arguments


def start(arguments: list[str], unset: tuple[str, ...] = (), **options) -> subprocess.Popen:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    environment = {name: value for name, value in environment.items() if name not in unset}
    return subprocess.Popen(
        [sys.executable, "-m", "train", *arguments],
        cwd=REPOSITORY,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


@pytest.fixture
def train():
    """Run ``python -m train`` with arguments to its end: (exit code, stdout, stderr)."""

    def run(arguments: list[str], unset: tuple[str, ...] = ()) -> tuple[int, str, str]:
        process = start(arguments, unset)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    return run


@pytest.fixture
def launch():
    """Start ``python -m train`` and hand over the process; what still runs at the end of the test is killed."""
    started = []

    def run(arguments: list[str]) -> subprocess.Popen:
        started.append(start(arguments))
        return started[-1]

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()
