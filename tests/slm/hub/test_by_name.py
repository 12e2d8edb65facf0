"""``org/name`` where tuning, training and evaluation take a model: the real commands, up to where a run would start."""

import json

import pytest

from slm.data.chat.story_chat import conversation
from slm.data.errors import UserError
from slm.evaluate.evaluate import main as evaluate
from slm.hub import models
from slm.model.checkpoint import load_config
from slm.train.resolve import resolve
from slm.train.tune.__main__ import tuning
from tests.helpers import tiny_checkpoint as tiny


def unchanged(config):
    return config


@pytest.fixture
def folder(repository):
    """Where the Hub's client keeps ``org/tiny``."""
    return models.resolve("org/tiny").checkpoint()


def test_tuning(repository, folder, tmp_path, capsys):
    rows = [json.dumps(conversation(1, index)) for index in range(20)]
    (tmp_path / "chats.jsonl").write_text("\n".join(rows))
    config = tuning(["base=org/tiny@v1", "data=chat", "data.files=[chats.jsonl]"])
    said = capsys.readouterr().out
    assert "licence apache-2.0" in said
    assert f"tuning {folder}: " in said
    assert "conversations: 20 OpenAI messages" in said
    assert (config.init_from, config.name) == (str(folder), "tiny-chat")
    shape = load_config(folder)
    assert (config.model.n_layers, config.model.d_model) == (shape.n_layers, shape.d_model)
    assert (config.optim.name, config.optim.lr) == ("adamw", 1e-3)  # by its size: its own rate is not known
    with pytest.raises(UserError, match=r"there is no folder org/none here and no model org/none on 127"):
        tuning(["base=org/none", "data=chat", "data.files=[chats.jsonl]"])


def test_training(repository, folder):
    words = ["preset=tiny", "init_from=org/tiny", "name=mine", "train.seq_len=64"]
    config = resolve(words, unchanged)
    assert (config.init_from, config.optim.name) == (str(folder), "adamw")
    with pytest.raises(UserError, match=r"org/tiny has no revision 'v9'"):
        resolve([*words, "init_from=org/tiny@v9"], unchanged)


def test_evaluation(repository, folder, tmp_path, capsys):
    (tmp_path / "text.txt").write_text(tiny.text(4000), encoding="utf-8")
    options = ["eval.text=text.txt", "eval.n_ctx=64", "eval.context=64", "eval.threads=1"]
    assert evaluate(["run=org/tiny", *options]) == 0
    by_name = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert evaluate([f"run={folder}", *options]) == 0
    by_path = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert by_name == by_path
    assert {each["engine"] for each in by_name} == {"torch"}
    assert all(each["perplexity"] > 1 for each in by_name)
    with pytest.raises(UserError, match=r"org/tiny holds no GGUF file; make one with"):
        evaluate(["run=org/tiny:q8_0", *options])
