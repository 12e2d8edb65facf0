"""The demo: which commands it runs, and that a failed one ends it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slm.command import demo
from slm.configuration import assigned
from tests.helpers import REPOSITORY

SMALL = (
    "tokenizer.vocab_size=512",
    "tokenizer.sample_bytes=200000",
    "model.n_layers=1",
    "model.d_model=256",
    "model.n_heads=4",
    "model.n_kv_heads=2",
    "model.ffn_dim=256",
    "train.seq_len=64",
    "train.micro_batch=4",
    "train.eval_blocks=4",
    "train.threads=1",
    "train.workers=0",
    "train.sample_prompts=[]",
)
"""A model that every stage is soon done with."""


def test_the_persons_words_replace_the_demos():
    words, root = demo.own_words(demo.OUR_WORDS, ["train.max_minutes=1", "runs_dir=out", "train.seed=5"])
    assert words == ["preset=tiny", "name=demo", "train.max_minutes=1", "runs_dir=out", "train.seed=5"]
    assert str(root) == "out/demo"
    train, export, evaluate, chat = demo.steps(words, root)
    assert train == ["train", *words]
    assert export[1] == evaluate[1] == "run=out/demo"
    assert chat[1] == "model=out/demo"


def test_a_stage_that_fails_ends_the_demo(monkeypatch, capfd):
    ran = []
    monkeypatch.setattr(demo, "run", lambda step: ran.append(step[0]) or (3 if step[0] == "export" else 0))
    assert demo.main([]) == 3
    assert ran == ["train", "export"]
    assert "Next" not in capfd.readouterr().out


@pytest.mark.slow
def test_the_demo_goes_the_whole_way_in_an_empty_folder(tmp_path):
    words = [*SMALL, "train.max_steps=20", "train.eval_every=20"]
    done = subprocess.run(
        [sys.executable, "-m", "slm", "demo", *words],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Once upon a time" in done.stdout
    assert "make serve MODEL=runs/demo" in done.stdout
    record = json.loads((tmp_path / "runs/demo/gguf/export.json").read_text())
    assert record["published"]
    assert "coherence of 64 stories by step-00000020: 0." in done.stdout


@pytest.mark.slow
def test_ctrl_c_reaches_the_training_which_saves(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "slm", "demo", *SMALL],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY), "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    metrics = tmp_path / "runs/demo/metrics.jsonl"
    try:
        end = time.monotonic() + 200
        while not (metrics.exists() and metrics.stat().st_size):
            assert time.monotonic() < end
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        out, _ = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130, out
    assert "Traceback" not in out
    assert list((tmp_path / "runs/demo/checkpoints").glob("step-*")), out


def test_a_value_in_the_quotes_that_hydra_wants_names_the_same_folder():
    _, root = demo.own_words(demo.OUR_WORDS, ["runs_dir='/tmp/a(b)'", 'name="it\\"s"'])
    assert root == Path('/tmp/a(b)/it"s')
    evaluation = demo.steps([], root)[2]
    assert evaluation[2] == assigned("eval.text", root / "validation.txt")
