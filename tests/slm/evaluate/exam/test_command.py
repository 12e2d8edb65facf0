"""The command: a run's checkpoint and files, one file, stories and own questions, and what a person may do wrong."""

import functools
import json
import signal
import sys

import pytest

from slm.data.errors import UserError
from slm.evaluate.exam.command import main
from slm.evaluate.exam.config import ExamConfig
from tests.helpers import export_faults, programs
from tests.helpers.chat_model import make_chat_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """An untrained chat model as a checkpoint and a GGUF file."""
    return make_chat_run(tmp_path_factory.mktemp("runs") / "runs" / "chat")


@pytest.fixture
def chats(tmp_path):
    path = tmp_path / "chats.jsonl"
    made = [{"instruction": f"Say {n}", "output": f"cat {n}"} for n in range(6)]
    path.write_text("\n".join(map(json.dumps, made)))
    return path


def rows(capsys) -> list[dict]:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_checkpoint_and_gguf_of_a_chat_model_are_asked(run, capsys):
    assert main([f"run={run}", "questions=6", "max_tokens=8", "threads=1"]) == 0
    found = rows(capsys)
    assert [row["engine"] for row in found] == ["torch", "llama.cpp"]
    assert all(row["questions"] == 6 for row in found)
    assert found[0]["right"] == found[1]["right"]


def test_own_questions_are_asked_to_a_run_and_to_one_file(run, chats, capsys):
    assert main([f"run={run}", f"data={chats}", "questions=4", "max_tokens=5", "threads=1", "show=1"]) == 0
    printed = capsys.readouterr().out
    found = json.loads(printed.splitlines()[-1])
    assert "conversations: 6 Alpaca instructions" in printed
    assert "4 of 6 questions are asked (questions=4), a fixed sample" in printed
    assert printed.count("expected: cat") == 2, "one wrong reply of each model"
    assert [(row["engine"], row["questions"], row["scores"]) for row in found] == [
        ("torch", 4, {"exact": 4}),
        ("llama.cpp", 4, {"exact": 4}),
    ]
    (gguf,) = (run / "gguf").glob("*.gguf")
    assert main([f"run={gguf}", f"data=[{chats}]", "score=likelihood", "threads=1", "show=0"]) == 0
    (row,) = rows(capsys)
    assert (row["file"], row["judged"], row["scores"]) == (gguf.name, 0, {"likelihood": 6})
    assert 1 < row["nats_per_token"] < 20
    assert row["nats_stderr"] > 0


def test_a_run_that_was_trained_on_the_questions_says_so(run, chats, capsys, monkeypatch):
    monkeypatch.delenv("SLM_MAKE", raising=False)
    config = run / "config.yaml"
    before = config.read_text()
    config.write_text(f"name: chat\ndata: {{kind: chat, files: ['{chats}']}}\n")
    (run / "questions.jsonl").write_text(chats.read_text())
    try:
        main([f"run={run}", f"data={chats}", "questions=1", "max_tokens=1", "threads=1", "files=[]"])
        printed = capsys.readouterr().out
        assert "chat was trained on these conversations" in printed
        assert "questions.jsonl" in printed
        main([f"run={run}", "questions=1", "max_tokens=1", "threads=1", "files=[]"])
        assert "this run has questions from its held-out conversations: `slm exam" in capsys.readouterr().out
    finally:
        config.write_text(before)
        (run / "questions.jsonl").unlink()


def test_wrong_options_are_one_line(run, chats):
    with pytest.raises(UserError, match="must be at least 1"):
        ExamConfig(questions=0)
    with pytest.raises(UserError, match="score=json is for your questions: add data="):
        ExamConfig(score="json")
    with pytest.raises(UserError, match="score=json compares JSON objects"):
        main([f"run={run}", f"data={chats}", "score=json"])
    (gguf,) = (run / "gguf").glob("*.gguf")
    with pytest.raises(UserError, match="leave files= out"):
        main([f"run={gguf}", f"files=[{gguf}]", f"data={chats}"])
    with pytest.raises(UserError, match="score"):
        main([f"run={run}", f"data={chats}", "score=best"])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the command is not watched elsewhere")
def test_a_crash_of_llama_cpp_is_one_line(run, tmp_path):
    (gguf,) = (run / "gguf").glob("*.gguf")
    crash = functools.partial(export_faults.crash_in, "slm.llama.context", "llama_decode")
    words = [f"run={run}", "questions=1", "checkpoint=false", "threads=1"]
    error = programs.run("slm.evaluate.exam", words, tmp_path, status=128 + signal.SIGSEGV, prepare=crash)
    (line,) = [each for each in error.splitlines() if each.startswith("error")]
    assert line.startswith(f"error: native code died with SIGSEGV while asking {gguf.name}; ")
    assert "Traceback" not in error
