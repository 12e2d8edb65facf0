"""A run's tokenizer is made once; one that export would refuse after the training is refused before it."""

import json

import pytest

from slm.data.errors import UserError
from slm.model.checkpoint import save_model
from slm.model.transformer import LanguageModel
from slm.train.resolve import resolve
from slm.train.run.run_directory import TOKENIZER
from slm.train.run.text import prepare_text
from tests.helpers import tiny_checkpoint as tiny
from tests.helpers.chat_model import base_tokenizer, with_template
from tests.helpers.small_run import OPTIONS

TEMPLATE = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"


def test_a_base_that_export_would_refuse_is_refused_before_training(tmp_path):
    """Its mark swallows the white space behind it, which llama.cpp does not know."""
    base, talks, root = tmp_path / "base", tmp_path / "talks.jsonl", tmp_path / "run"
    marks = ("<|im_start|>", "<|im_end|>")
    tokenizer = with_template(base_tokenizer(), TEMPLATE, marks, bos="<|endoftext|>", eos="<|im_end|>")
    base.mkdir()
    save_model(base, LanguageModel(tiny.config(vocab_size=704, n_layers=1, eos_id=tokenizer.eot_id)))
    tokenizer.save(base)
    spec = json.loads((base / "tokenizer.json").read_text())
    spec["added_tokens"][-1]["rstrip"] = True
    (base / "tokenizer.json").write_text(json.dumps(spec))
    talks.write_text("\n".join(json.dumps({"instruction": f"Say {n}", "output": "cat"}) for n in range(40)))
    root.mkdir()
    words = [*OPTIONS, f"runs_dir={tmp_path}", "name=run", f"init_from={base}", "data=chat", f"data.files=[{talks}]"]
    words = [word for word in words if word != "data=local"]
    with pytest.raises(UserError, match=r"refuse this model.*in a chat.*Take another base or tokenizer"):
        prepare_text(resolve(words, lambda config: config), root)
    assert not (root / TOKENIZER).exists()


def test_a_shape_that_export_would_refuse_is_refused_before_training(tmp_path):
    """llama.cpp has no place for a query_pre_attn_scalar other than head_dim."""
    base, root = tmp_path / "base", tmp_path / "run"
    tiny.checkpoint(base, arch="gemma3", n_layers=1, query_scalar=32.0)
    root.mkdir()
    words = [*OPTIONS, f"runs_dir={tmp_path}", "name=run", f"init_from={base}"]
    with pytest.raises(UserError, match=r"refuse this model.*query_pre_attn_scalar=32.*Take another base or tokenizer"):
        prepare_text(resolve(words, lambda config: config), root)
    assert not (root / TOKENIZER).exists()
