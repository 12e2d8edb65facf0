"""What commands print: tables that fit the screen, what to do next with what they left, and one line of JSON."""

import json
import os
import re

import pytest

from tests.helpers import REPOSITORY, programs, tiny_gguf
from tests.helpers.small_run import OPTIONS, QUICK, write_corpus

RULE = re.compile(r"(  )?-{2,}(  -+)*")
TINY = ("calibration.chunks=1", "threads=1")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a run of three steps, and files of text and questions; and what the training printed."""
    folder = tmp_path_factory.mktemp("output")
    write_corpus(folder / "text.jsonl")
    rows = "".join(f"Is {n} a number?,It is number {n}.\n" for n in range(20))
    (folder / "questions.csv").write_text("question,answer\n" + rows)
    tiny_gguf.write(folder / "tiny.gguf")
    steps = ("train.max_steps=3", "train.eval_every=3")
    out = slm(folder, 80, "train", *OPTIONS, "name=mine", "data.files=[text.jsonl]", *steps)
    slm(folder, 80, "export", "run=mine", "quant=q8_0", "proof.chunks=1", *TINY)
    return folder, out


@pytest.fixture(scope="module")
def folder(trained):
    return trained[0]


def slm(folder, width: int, *words: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "PYTHONSAFEPATH": "1", "COLUMNS": str(width)}
    environment.pop("SLM_MAKE", None)
    return programs.run("slm", list(words), folder, cwd=folder, environment=environment)


def is_json(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict | list)
    except ValueError:
        return False


def tables(out: str) -> list[list[str]]:
    """The lines of each table: the names of its columns, the rule below, the rows up to a blank line."""
    lines, found = out.splitlines(), []
    for n, line in enumerate(lines):
        if RULE.fullmatch(line):
            end = next((m for m in range(n, len(lines)) if not lines[m].strip()), len(lines))
            found.append(lines[n - 1 : end])
    return found


SMALL = (*OPTIONS, "data.files=[text.jsonl]")
STEPS = ("train.max_steps=2", "train.eval_every=2", *QUICK)
TEXT = ("preset=tiny", "data=local", "data.files=[text.jsonl]", "tokenizer.vocab_size=300")
COMMANDS = {
    "plan": ("preset=125m", "tokens_per_s=800"),
    "data-stats": TEXT,
    "prepare": (*TEXT, "out=prepared", "processes=1"),
    "export": ("run=mine", "quant=q4_k_m,q8_0", "proof.chunks=1", *TINY),
    "verify": ("run=mine",),
    "eval": ("run=mine", "eval.max_tokens=300", "eval.threads=1"),
    "exam": ("run=mine", "data=questions.csv", "questions=4", "threads=1"),
    "bench-quant": ("run=mine", "quant=[q8_0,q4_0]", "speed.rounds=0", "eval.max_tokens=300", *TINY),
    "checkpoint": ("model=tiny.gguf", "out=read"),
    "report": ("mine",),
    "doctor": ("compile=false", "decode=false"),
    "tune": ("mine", "questions.csv", "resume=never", *STEPS),
    "qat": ("mine", "resume=never", *STEPS, "train.threads=1"),
    "sweep": (*SMALL, *STEPS, "sweep.rungs=[]", "optim.lr=0.01,0.02", "name=rates"),
    "bench-train": (*SMALL, "bench.steps=1", "bench.warmup=1", "bench.baselines=[]"),
    "bench-serve": (
        *("model=tiny.gguf", "serve.threads=1", "bench.clients=[1]", "bench.rounds=1", "bench.new_tokens=4"),
        *("bench.open=[]", "bench.busy=[]", "bench.extra=[]"),
        *("bench.llama_server=off", "bench.llama_cpp_server=off"),
    ),
}
NO_TABLE = ("verify", "checkpoint", "report", "tune", "qat")
LEAVES = ("data-stats", "prepare", "export", "bench-quant", "checkpoint", "report", "tune", "qat", "sweep")


@pytest.mark.slow
@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("command", COMMANDS)
def test_its_tables_fit_and_its_last_line_is_json(folder, command, width):
    words = [NEW.get(word, word).format(width) for word in COMMANDS[command]]
    out = slm(folder, width, command, *words)
    *said, last = out.splitlines()
    assert is_json(last), last
    assert not [line for line in said if is_json(line)]
    assert bool(tables(out)) == (command not in NO_TABLE), out
    assert not [line for table in tables(out) for line in table if len(line) > width]
    if command in LEAVES:
        assert [line for line in said if line.startswith("next: ")], out


NEW = {"out=prepared": "out=prepared{}", "out=read": "out=read{}", "name=rates": "name=rates{}"}
"""What a command writes, once for each width: it refuses a folder with other contents, or goes on with it."""


def test_json_false_prints_none(folder):
    out = slm(folder, 120, "plan", *COMMANDS["plan"], "json=false")
    assert not [line for line in out.splitlines() if is_json(line) or len(line) > 120]


@pytest.mark.slow
def test_a_run_ends_with_its_figures(trained):
    """For a script: where the checkpoint is, and how good."""
    folder, out = trained
    *said, last = out.splitlines()
    record = json.loads(last)
    assert [line for line in said if line.startswith("next: ")], out
    assert not [line for line in said if is_json(line)]
    assert (record["run"], record["status"], record["step"]) == ("runs/mine", "finished", 3)
    assert (folder / record["checkpoint"] / "model.safetensors").is_file()
    assert record["tokens"] == 3 * 4 * 32
    assert f"{record['val_loss']:.4f} nats per token, {record['val_bits_per_byte']:.4f} bits per byte" in out
    assert 0 < record["elapsed_s"] < record["elapsed_s"] + record["setup_s"]
