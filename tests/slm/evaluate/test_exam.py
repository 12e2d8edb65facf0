"""The exam counts what is right and what stops, for a model that answers and one that does not."""

import functools
import json
import signal
import sys

import pytest

from data.chat.story_chat import exam
from data.errors import UserError
from slm.evaluate import exam as module
from slm.evaluate.exam import ExamConfig, Reply, ask, plain
from tests.helpers import export_faults, programs

QUESTIONS = exam(60)


def knows(messages) -> Reply:
    (question,) = [each for each in QUESTIONS if each.messages == messages]
    return Reply(question.question.answer, True)


def test_a_model_that_knows_is_right_everywhere():
    row = ask("m", "torch", knows, QUESTIONS)
    assert (row["right"], row["stopped"], row["questions"]) == (60, 60, 60)
    assert row["by_kind"] == {"who": 1.0, "where": 1.0, "what": 1.0}
    assert row["by_family"] == {"stories": 1.0, "names": 1.0, "wordings": 1.0}


def test_a_model_that_repeats_the_story_is_wrong_and_does_not_stop(capsys):
    row = ask("m", "torch", lambda messages: Reply("Lily and Tom and Max", False), QUESTIONS, n_shown=2)
    assert row["right"] < 5
    assert row["stopped"] == 0
    assert capsys.readouterr().out.count("wrong: ") == 2


def test_a_base_model_gets_plain_text():
    assert plain([{"role": "user", "content": "A story.\n\nWho?"}]) == "A story.\n\nWho?\n\n"


def test_wrong_options_are_one_line():
    with pytest.raises(UserError, match="must be at least 1"):
        ExamConfig(questions=0)


def test_checkpoint_and_gguf_of_a_chat_model_are_asked(tmp_path, capsys):
    """An untrained model: both engines are asked the same and give the same replies."""
    from tests.helpers.chat_model import make_chat_run

    run = make_chat_run(tmp_path / "runs" / "chat")
    assert module.main([f"run={run}", "questions=6", "max_tokens=8", "threads=1"]) == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["engine"] for row in rows] == ["torch", "llama.cpp"]
    assert all(row["questions"] == 6 for row in rows)
    directory, gguf = run / "checkpoints" / "step-00000001", next((run / "gguf").glob("*.gguf"))
    in_torch = module.checkpoint_answers(directory, 8, 1)
    with module.GGUFAnswers(gguf, 8, 1) as in_llama:
        for each in QUESTIONS[:4]:
            assert in_torch(each.messages) == in_llama(each.messages)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the command is not watched elsewhere")
def test_a_crash_of_llama_cpp_is_one_line(tmp_path):
    from tests.helpers.chat_model import make_chat_run

    run = make_chat_run(tmp_path / "runs" / "chat")
    (gguf,) = (run / "gguf").glob("*.gguf")
    crash = functools.partial(export_faults.crash_in, "slm.llama.context", "llama_decode")
    words = [f"run={run}", "questions=1", "checkpoint=false", "threads=1"]
    error = programs.run("slm.evaluate.exam", words, tmp_path, status=128 + signal.SIGSEGV, prepare=crash)
    (line,) = [each for each in error.splitlines() if each.startswith("error")]
    assert line.startswith(f"error: native code died with SIGSEGV while asking {gguf.name}; ")
    assert "Traceback" not in error
