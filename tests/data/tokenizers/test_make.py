"""Tokenizers from disk and from a configuration: files that come along, end-of-text tokens, errors, the fallback."""

import json

import pytest

from slm.data.config import TokenizerConfig
from slm.data.errors import UserError
from slm.data.tokenizers.make import load_tokenizer, make_tokenizer
from slm.data.tokenizers.tokenizer import EOT
from tests.helpers.tokenizers import auto, ids_of, stories


def test_a_directory_from_elsewhere_is_saved_as_it_was(bpe, tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    bpe.save(source)
    spec = json.loads((source / "tokenizer.json").read_text())
    spec["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    spec["padding"] = {
        "strategy": {"Fixed": 8},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": EOT,
    }
    (source / "tokenizer.json").write_text(json.dumps(spec))
    config = {"eos_token": {"content": EOT, "special": True}, "chat_template": "{{ messages }}", "add_bos_token": True}
    (source / "tokenizer_config.json").write_text(json.dumps(config))
    (source / "chat_template.jinja").write_text("{{ messages }}")
    (source / "model.safetensors").write_bytes(b"weights")
    loaded = make_tokenizer(TokenizerConfig(kind="file", path=str(source)), stories)
    assert loaded.encode("Once upon a time there was a bear") == bpe.encode("Once upon a time there was a bear")
    loaded.save(target)
    assert sorted(path.name for path in target.iterdir()) == [
        "chat_template.jinja",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    for path in target.iterdir():
        assert path.read_bytes() == (source / path.name).read_bytes()


def test_a_bare_tokenizer_json(bpe, tmp_path):
    path = tmp_path / "my.json"
    path.write_bytes(bpe.files["tokenizer.json"])
    loaded = load_tokenizer(path)
    assert loaded.eot_id == bpe.eot_id
    loaded.save(tmp_path / "out")
    text = "Once 12  \n x"
    assert ids_of(auto(tmp_path / "out"), text) == bpe.encode(text)


def rename_eot(bpe, name):
    return bpe.files["tokenizer.json"].replace(EOT.encode(), name.encode())


def test_the_end_of_text_token_can_be_named(bpe, tmp_path):
    path = tmp_path / "t.json"
    path.write_bytes(rename_eot(bpe, "<|stop|>"))
    with pytest.raises(UserError, match=r"does not say .* for training tokenizer.eot_token, one of <\|stop\|>"):
        load_tokenizer(path)
    assert load_tokenizer(path, eot_token="<|stop|>").eot_id == 0
    folder = tmp_path / "from-elsewhere"
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes(rename_eot(bpe, "<|stop|>"))
    for settings in ({}, {"eos_token": {"content": "a"}}):
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        load_tokenizer(folder, eot_token="<|stop|>").save(tmp_path / "run")
        assert load_tokenizer(tmp_path / "run").eot_token == "<|stop|>", "kept with the run"
    with pytest.raises(UserError, match=r"no token '<eos>': .* \(<\|stop\|>\)"):
        load_tokenizer(path, eot_token="<eos>")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not json", "cannot be read"),
        (b"{}", "cannot be read"),
        (b"\xff", "cannot be read"),
        (b'{"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}, "added_tokens": []}', "WordLevel"),
    ],
)
def test_files_that_are_no_tokenizer(tmp_path, content, message):
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(UserError, match=message):
        load_tokenizer(tmp_path)


def test_missing_files(tmp_path):
    with pytest.raises(UserError, match="there is no tokenizer at"):
        load_tokenizer(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"neither tokenizer.json nor tokenizer.model"):
        load_tokenizer(tmp_path)
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(UserError, match=r"vocab\.json and merges\.txt, which do not say how text is split"):
        load_tokenizer(tmp_path)


def test_a_bpe_that_leaves_out_merges_at_random_is_read_without_that(bpe, tmp_path, capsys):
    bpe.save(tmp_path)
    path = tmp_path / "tokenizer.json"
    spec = json.loads(path.read_text())
    path.write_text(json.dumps(spec | {"model": spec["model"] | {"dropout": 0.9}}))
    text = "the bear and the fox went to the river " * 5
    made = load_tokenizer(tmp_path)
    assert all(made.encode(text) == bpe.encode(text) for _ in range(5))
    assert json.loads(made.files["tokenizer.json"])["model"]["dropout"] is None
    assert "(dropout=0.9), so that a text has other ids each time: it is read without" in capsys.readouterr().out
    path.write_text(json.dumps(spec | {"model": spec["model"] | {"dropout": 0.0}}))
    assert load_tokenizer(tmp_path).encode(text) == bpe.encode(text)
    vocabulary = spec["model"]["vocab"]
    ids = [*vocabulary.values(), *(each["id"] for each in spec["added_tokens"])]
    path.write_text(json.dumps(spec | {"model": spec["model"] | {"vocab": vocabulary | {"dropout": max(ids) + 1}}}))
    assert load_tokenizer(tmp_path).encode(text) == bpe.encode(text)  # the number of a word
    assert capsys.readouterr().out == ""


def test_a_byte_order_mark_is_no_part_of_a_file(bpe, tmp_path):
    bpe.save(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + (tmp_path / name).read_bytes())
    assert load_tokenizer(tmp_path).encode("the bear") == bpe.encode("the bear")


def test_without_its_vocabulary_a_bpe_of_ones_own_text_can_serve(monkeypatch, tmp_path):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("slm.data.tokenizers.from_tiktoken._fetch", _refuse)
    monkeypatch.setattr("tiktoken.registry.ENCODINGS", {})
    config = TokenizerConfig(kind="tiktoken", name="p50k_base", fallback="bpe", vocab_size=300)
    warnings = []
    tokenizer = make_tokenizer(config, lambda: iter(["the cat sat on the mat and the cat ran"] * 50), warnings.append)
    assert tokenizer.decode(tokenizer.encode("the cat")) == "the cat"
    assert 257 < tokenizer.vocab_size <= 300
    assert "did not come from" in warnings[0]
    assert "tokenizer.fallback=none" in warnings[0]


def _refuse(url: str) -> bytes:
    import requests

    raise requests.ConnectionError(url)
