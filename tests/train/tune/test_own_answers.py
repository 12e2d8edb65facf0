"""A downloaded model's own answers are mixed into its tuning."""

import json

import pytest
import torch

from slm.data.chat.tokens import with_chatml
from slm.data.tokenizers.tokenizer import Tokenizer
from slm.model.checkpoint import save_model
from slm.model.transformer import LanguageModel
from slm.train.tune import own_answers as module
from slm.train.tune.__main__ import tuning
from slm.train.tune.own_answers import QUESTIONS, own_answers
from tests.helpers import chat_model
from tests.helpers import tiny_checkpoint as tiny


@pytest.fixture
def base(tmp_path, monkeypatch):
    """A tiny chat model that ends its turn at once, or never."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tokenizer: Tokenizer = with_chatml(chat_model.base_tokenizer())
    torch.manual_seed(1)
    size = -(-tokenizer.vocab_size // 64) * 64
    model = LanguageModel(tiny.config(vocab_size=size, n_layers=1, eos_id=tokenizer.eot_id))
    (tmp_path / "model").mkdir()
    save_model(tmp_path / "model", model)
    tokenizer.save(tmp_path / "model")
    return tmp_path / "model"


def test_answers_that_the_model_does_not_end_are_no_answers(base):
    said: list[str] = []
    assert own_answers(base, said.append) is None
    assert len(said) == 1
    assert "general questions, once" in said[0]


def test_answers_are_kept_and_mixed_in(base, tmp_path, monkeypatch):
    answer = {"role": "assistant", "content": "Yes."}
    found = [{"messages": [{"role": "user", "content": question}, answer]} for question in QUESTIONS]
    asked: list[object] = []
    monkeypatch.setattr(module, "_ask", lambda directory, log: asked.append(directory) or found)
    path = own_answers(base, print)
    assert own_answers(base, print) == path
    assert len(asked) == 1
    chats = tmp_path / "chats.jsonl"
    chats.write_text("\n".join(json.dumps({"prompt": f"Say {n}", "completion": "cat"}) for n in range(40)))
    words = [f"base={base}", f"runs_dir={tmp_path}/runs", "data=chat", f"data.files=[{chats}]"]
    config, plain = tuning(words), tuning([*words, "tune.replay=0"])
    talks, own = config.data.all_sources()
    assert (talks.files, own.files) == ([str(chats)], [str(path)])
    assert own.weight / (own.weight + talks.weight) == pytest.approx(0.2)
    assert not own.validated
    assert config.data.val_fraction == plain.data.val_fraction == 0
    assert config.train.max_steps == pytest.approx(plain.train.max_steps / 0.8, abs=1)
    assert plain.data.kind == "chat"
