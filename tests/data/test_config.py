"""The Hydra groups of text and tokenizers, and the checks of their dataclasses."""

from dataclasses import FrozenInstanceError

import pytest
import yaml

from slm.configuration import build, load_config
from slm.data.config import DataConfig, SourceConfig, TokenizerConfig
from slm.data.errors import UserError


@pytest.mark.parametrize("name", ["tales", "local", "wikitext", "tinystories", "wikipedia_stories"])
def test_data_groups_build(name):
    config = build(DataConfig, load_config("train", [f"data={name}"])["data"], "data")
    assert config.all_sources()
    assert all(isinstance(source, SourceConfig) for source in config.all_sources())


@pytest.mark.parametrize("name", ["gpt2", "bpe", "sentencepiece", "unigram", "file"])
def test_tokenizer_groups_build(repository, name):
    values = yaml.safe_load((repository / "configs" / "tokenizer" / f"{name}.yaml").read_text())
    if values["kind"] == "file":
        with pytest.raises(UserError, match=r"add tokenizer\.path="):
            build(TokenizerConfig, values, "tokenizer")
        values["path"] = "somewhere"
    assert build(TokenizerConfig, values, "tokenizer").kind == values["kind"]


def test_every_option_can_be_given_on_the_command_line():
    options = ["data.max_epochs=3", "data.min_letters=0.5", "data.script=Latin", "data.dedup=near", "data.cache=true"]
    config = build(DataConfig, load_config("train", ["data=local", *options])["data"], "data")
    source = config.all_sources()[0]
    assert (source.max_epochs, source.min_letters, source.script_key) == (3, 0.5, "latin")
    assert (config.dedup, config.cache) == ("near", True)


def test_a_mixtures_sources_take_its_limits_where_they_have_none():
    sources = [{"kind": "tales", "min_chars": 10}, {"kind": "hub", "path": "a/b", "max_epochs": 1}]
    config = build(DataConfig, {"kind": "mixture", "sources": sources, "min_chars": 99, "max_epochs": 4}, "data")
    assert [(s.min_chars, s.max_epochs) for s in config.all_sources()] == [(10, 4), (99, 1)]
    assert [(s.min_chars, s.max_epochs) for s in config.sources] == [(10, None), (0, 1)]


@pytest.mark.parametrize(
    ("config", "option"),
    [
        (SourceConfig(kind="tales"), "script"),
        (DataConfig(kind="tales"), "val_fraction"),
        (TokenizerConfig(kind="bpe"), "vocab_size"),
    ],
)
def test_a_configuration_cannot_be_changed(config, option):
    with pytest.raises(FrozenInstanceError):
        setattr(config, option, getattr(config, option))


def test_where_the_cache_is(monkeypatch, tmp_path):
    config = DataConfig(kind="tales")
    monkeypatch.delenv("SLM_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert config.cache_folder == tmp_path / "slm"
    monkeypatch.setenv("SLM_CACHE", str(tmp_path / "mine"))
    assert config.cache_folder == tmp_path / "mine"
    assert str(DataConfig(kind="tales", cache_dir="x").cache_folder) == "x"


def test_the_classic_mixture():
    config = build(DataConfig, load_config("train", ["data=wikipedia_stories"])["data"], "data")
    assert [(s.path, s.subset) for s in config.all_sources()] == [
        ("wikimedia/wikipedia", "20231101.en"),
        ("roneneldan/TinyStories", ""),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "tales", "val_fraction": 0}, "val_fraction"),
        ({"kind": "tales", "val_fraction": 1.0}, "val_fraction"),
        ({"kind": "tales", "shuffle_buffer": -1}, "shuffle_buffer"),
        ({"kind": "tales", "weight": 0}, "weight"),
        ({"kind": "files", "document_chars": 10}, "document_chars"),
        ({"kind": "tales", "max_epochs": 0}, "max_epochs"),
        ({"kind": "tales", "min_chars": -1}, "min_chars"),
        ({"kind": "tales", "min_chars": 9, "max_chars": 8}, "max_chars=8 is less than min_chars=9"),
        ({"kind": "tales", "min_letters": 1.5}, "min_letters"),
        ({"kind": "tales", "script": "latn"}, "latin"),
        ({"kind": "tales", "dedup": "nearly"}, "near"),
        ({"kind": "tales", "dedup_threshold": 0.1}, "dedup_threshold"),
        ({"kind": "tales", "dedup_max_docs": 0}, "dedup_max_docs"),
        ({"kind": "tales", "cache": "yes"}, "auto"),
        ({"kind": "hub"}, r"data\.path="),
        ({"kind": "mixture"}, r"data\.sources"),
        ({"kind": "mixture", "sources": [{"kind": "mixture"}]}, "mixtures"),
        ({"kind": "mixture", "sources": [{"kind": "tales", "weigth": 1}]}, "weight"),
        ({"kind": "tales", "sources": [{"kind": "tales"}]}, "kind=mixture"),
        ({"kind": "tale"}, "tales"),
        ({"kind": "files", "file": ["a"]}, "files"),
    ],
)
def test_wrong_data_options(options, message):
    with pytest.raises(UserError, match=message):
        build(DataConfig, options, "data")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "bpe", "vocab_size": 100}, "257"),
        ({"kind": "sentencepiece", "vocab_size": 299}, "300"),
        ({"kind": "unigram", "vocab_size": 199}, "200"),
        ({"kind": "bpe", "min_frequency": 0}, "min_frequency"),
        ({"kind": "file"}, r"tokenizer\.path="),
        ({"kind": "bep"}, "bpe"),
    ],
)
def test_wrong_tokenizer_options(options, message):
    with pytest.raises(UserError, match=message):
        build(TokenizerConfig, options, "tokenizer")
