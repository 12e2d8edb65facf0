"""What export would refuse is refused before training, with the reason; what it takes is asked once."""

import json

import pytest

from slm.data.errors import UserError
from slm.data.tokenizers.make import load_tokenizer
from slm.data.tokenizers.tokenizer import Tokenizer, special_token
from slm.vocabulary import exportable
from slm.vocabulary.exportable import require_exportable
from slm.vocabulary.gguf_vocab import build_vocab
from tests.helpers import tiny_checkpoint as tiny
from tests.helpers.chat_model import base_tokenizer, with_template
from tests.helpers.tokenizers import save_gemma_like

FACTS = {"ids": {"bos_token_id": None, "eos_token_id": 0}, "name": "mine", "otherwise": "Take another."}
RSTRIP = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def refusal(tokenizer: Tokenizer, rows: int = 768) -> str:
    with pytest.raises(UserError) as caught:
        require_exportable(tokenizer, rows=rows, **FACTS)
    said = str(caught.value)
    assert said.startswith("export would refuse this model after its training: ")
    assert said.endswith(". Take another.")
    assert "\n" not in said
    return said


def test_a_tokenizer_that_export_takes_is_asked_about_once(monkeypatch):
    tokenizer = tiny.tokenizer()
    require_exportable(tokenizer, rows=400, **FACTS)
    monkeypatch.setattr(exportable, "run_trial", None)
    require_exportable(tokenizer, rows=400, **FACTS)


def test_a_mark_that_swallows_white_space_is_named():
    marks = ("<|im_start|>", "<|im_end|>")
    tokenizer = with_template(base_tokenizer(), RSTRIP, marks, bos="<|endoftext|>", eos="<|im_end|>")
    spec = json.loads(tokenizer.files["tokenizer.json"])
    spec["added_tokens"][-1]["rstrip"] = True
    files = tokenizer.files | {"tokenizer.json": json.dumps(spec).encode()}
    assert "in a chat, its tokenizer gives other ids" in refusal(Tokenizer(files, name="odd"))


def test_an_unknown_split_and_a_wrong_size_are_named(tmp_path):
    spec = json.loads(tiny.tokenizer().files["tokenizer.json"])
    spec["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [{"type": "Punctuation"}, spec["pre_tokenizer"]]}
    files = tiny.tokenizer().files | {"tokenizer.json": json.dumps(spec).encode()}
    assert "splits text by a rule that is not known here (Punctuation" in refusal(Tokenizer(files, name="odd"))
    assert "belongs to another model" in refusal(tiny.tokenizer(), rows=256)


def test_an_end_for_which_the_model_has_no_row_is_refused():
    settings = {**tiny.tokenizer().settings, "eos_token": "<|end|>"}
    spec = json.loads(tiny.tokenizer().files["tokenizer.json"])
    spec["added_tokens"].append(special_token(5000, "<|end|>"))
    files = {"tokenizer.json": json.dumps(spec).encode(), "tokenizer_config.json": json.dumps(settings).encode()}
    endless, facts = Tokenizer(tiny.tokenizer().files | files, name="endless"), FACTS | {"ids": {"eos_token_id": 5000}}
    with pytest.raises(UserError, match="the token 5000 that ends a text has no row in the model, which has 400"):
        require_exportable(endless, rows=400, **facts)


def test_a_turn_for_the_end_of_which_the_model_has_no_row_is_refused():
    marks = ("<|im_start|>", "<|im_end|>")
    tokenizer = with_template(base_tokenizer(), RSTRIP, marks, bos="<|endoftext|>", eos="<|endoftext|>")
    assert "that ends a turn of a chat has no row" in refusal(tokenizer, rows=tokenizer.vocab_size - 1)


def test_a_template_that_does_not_render_is_told(capsys):
    tokenizer = with_template(base_tokenizer(), "{% for m in messages %}", (), bos=None, eos="<|endoftext|>")
    require_exportable(tokenizer, rows=768, **FACTS)
    assert "warning: exported files will hold a chat template with which no chat works: " in capsys.readouterr().out


def test_a_sentencepiece_model_that_removes_spaces_is_refused(tmp_path):
    import sentencepiece

    (tmp_path / "text.txt").write_text(tiny.text())
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text.txt"), model_prefix=str(tmp_path / "small"), vocab_size=380, model_type="bpe",
        byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=True, minloglevel=3,
    )  # fmt: skip
    assert "its tokenizer gives other ids" in refusal(load_tokenizer(tmp_path / "small.model"))


def test_a_sentencepiece_mark_that_swallows_white_space_is_named(tmp_path):
    """As Phi's: the pieces are in tokenizer.model, the habit of the mark in tokenizer.json."""
    rows = save_gemma_like(tmp_path, tiny.text(30_000))
    template = RSTRIP.replace("<|im_start|>", "<start_of_turn>").replace("<|im_end|>", "<end_of_turn>")
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template}))
    facts = FACTS | {"ids": {"bos_token_id": 2, "eos_token_id": 1}}
    require_exportable(load_tokenizer(tmp_path), rows=rows, **facts)
    path = tmp_path / "tokenizer.json"
    spec = json.loads(path.read_text())
    for each in spec["added_tokens"]:
        each["rstrip"] = each["content"] == "<end_of_turn>"
    path.write_text(json.dumps(spec))
    with pytest.raises(UserError, match="in a chat, its tokenizer gives other ids"):
        require_exportable(load_tokenizer(tmp_path), rows=rows, **facts)


def test_llama_cpps_death_is_one_line(monkeypatch):
    class Died:
        returncode, stdout, stderr = -6, b"", b"GGML_ASSERT"

    monkeypatch.setattr(exportable, "run_trial", lambda *arguments, **options: Died)
    assert "llama.cpp dies with SIGABRT where it reads the tokenizer" in refusal(tiny.tokenizer())


def test_a_list_of_tokens_as_text_gives_way_to_tokenizer_json(tmp_path):
    """Llama 3's tokenizer.model is tiktoken's list, and no SentencePiece model."""
    tiny.tokenizer().save(tmp_path)
    wanted = build_vocab(tmp_path, 400).tokens
    (tmp_path / "tokenizer.model").write_text("IQ== 0\nIg== 1\nIw== 2\n")
    assert build_vocab(tmp_path, 400).tokens == wanted
    assert load_tokenizer(tmp_path).eot_id == 0


def test_more_special_tokens_than_rows_are_left_out():
    spec = json.loads(tiny.tokenizer().files["tokenizer.json"])
    spec["added_tokens"].append(special_token(5000, "<image>"))
    files = tiny.tokenizer().files | {"tokenizer.json": json.dumps(spec).encode()}
    require_exportable(Tokenizer(files, name="large"), rows=400, **FACTS)
