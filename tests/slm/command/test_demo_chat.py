"""The chat demo: which commands it runs, and what it needs before."""

import pytest

from slm.command import demo, demo_chat
from slm.data.errors import UserError
from tests.helpers import programs


def test_the_demos_model_is_tuned_exported_examined_and_asked(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    ran = []
    monkeypatch.setattr(demo, "run", lambda step: ran.append(step) or 0)
    assert demo_chat.main(["train.max_minutes=1"]) == 0
    tune, export, exam, chat = ran
    assert tune == ["tune", *[w for w in demo_chat.OUR_WORDS if "minutes" not in w], "train.max_minutes=1"]
    assert export[1] == exam[1] == "run=runs/demo-chat"
    assert chat[1] == "model=runs/demo-chat"
    assert "?" in chat[2]
    assert chat[2].removeprefix("prompt=") in capsys.readouterr().out


def test_the_command_itself_says_what_it_needs(tmp_path):
    """By its name, in an empty folder: it must not end without a word."""
    error = programs.run("slm", ["demo-chat"], tmp_path, status=2, cwd=tmp_path)
    assert "runs/demo does not exist" in error


def test_it_needs_the_demo(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"runs/demo does not exist: run `.* demo` first"):
        demo_chat.main([])


def test_a_stage_that_fails_ends_it(monkeypatch, tmp_path):
    ran = []
    monkeypatch.setattr(demo, "run", lambda step: ran.append(step[0]) or 3)
    assert demo_chat.main([f"base={tmp_path}"]) == 3
    assert ran == ["tune"]
