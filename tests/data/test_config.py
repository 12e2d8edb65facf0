"""The Hydra groups of text and tokenizers, and the checks of their dataclasses."""

import pytest
import yaml

from data.config import DataConfig, SourceConfig, TokenizerConfig
from data.errors import UserError
from slm.configuration import build


@pytest.mark.parametrize("name", ["tales", "local", "wikitext", "tinystories", "wikipedia_stories"])
def test_data_groups_build(repository, name):
    config = build(DataConfig, yaml.safe_load((repository / "configs" / "data" / f"{name}.yaml").read_text()), "data")
    assert config.all_sources()
    assert all(isinstance(source, SourceConfig) for source in config.all_sources())


@pytest.mark.parametrize("name", ["gpt2", "bpe", "file", "sentencepiece"])
def test_tokenizer_groups_build(repository, name):
    values = yaml.safe_load((repository / "configs" / "tokenizer" / f"{name}.yaml").read_text())
    if values["kind"] == "file":
        with pytest.raises(UserError, match=r"add tokenizer\.path="):
            build(TokenizerConfig, values, "tokenizer")
        values["path"] = "somewhere"
    assert build(TokenizerConfig, values, "tokenizer").kind == values["kind"]


def test_the_classic_mixture(repository):
    text = (repository / "configs" / "data" / "wikipedia_stories.yaml").read_text()
    config = build(DataConfig, yaml.safe_load(text), "data")
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
        ({"kind": "bpe", "min_frequency": 0}, "min_frequency"),
        ({"kind": "file"}, r"tokenizer\.path="),
        ({"kind": "bep"}, "bpe"),
    ],
)
def test_wrong_tokenizer_options(options, message):
    with pytest.raises(UserError, match=message):
        build(TokenizerConfig, options, "tokenizer")
