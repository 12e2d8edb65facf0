"""What commands print: tables that fit the screen, what to do next with what they left, and one line of JSON."""

import json
import os
import re

import pytest

from tests.helpers import REPOSITORY, programs, tiny_gguf
from tests.helpers.small_run import OPTIONS, write_corpus

RULE = re.compile(r"(  )?-{2,}(  -+)*")
TINY = ("calibration.chunks=1", "threads=1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With a run of three steps, and files of text and questions."""
    folder = tmp_path_factory.mktemp("output")
    write_corpus(folder / "text.jsonl")
    rows = "".join(f"Is {n} a number?,It is number {n}.\n" for n in range(20))
    (folder / "questions.csv").write_text("question,answer\n" + rows)
    tiny_gguf.write(folder / "tiny.gguf")
    slm(
        folder, 80, "train", *OPTIONS, "name=mine", "data.files=[text.jsonl]", "train.max_steps=3", "train.eval_every=3"
    )
    slm(folder, 80, "export", "run=mine", "quant=q8_0", "proof.chunks=1", *TINY)
    return folder


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
}
NO_TABLE = ("verify", "checkpoint", "report")
LEAVES = ("data-stats", "prepare", "export", "bench-quant", "checkpoint", "report")


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_its_tables_fit_and_its_last_line_is_json(folder, command):
    out = slm(folder, 80, command, *COMMANDS[command])
    *said, last = out.splitlines()
    assert is_json(last), last
    assert not [line for line in said if is_json(line)]
    assert bool(tables(out)) == (command not in NO_TABLE), out
    assert not [line for table in tables(out) for line in table if len(line) > 80]
    if command in LEAVES:
        assert [line for line in said if line.startswith("next: ")], out
    without = slm(folder, 120, command, *COMMANDS[command], "json=false") if command == "plan" else ""
    assert not [line for line in without.splitlines() if is_json(line) or len(line) > 120]
