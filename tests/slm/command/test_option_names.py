"""The options that completion offers are those that Hydra composes."""

import pytest

from slm.command.option_names import options
from slm.command.table import COMMANDS
from slm.configuration import choices, load_config


def keys(tree, prefix=""):
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from keys(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


@pytest.mark.parametrize("name", sorted({command.config for command in COMMANDS.values()}))
def test_the_keys_are_those_of_the_composed_configuration(name):
    words = ["model=x"] if name in ("serve", "terminal", "bench_serve") else []
    composed = set(keys(load_config(name, words, literal=("model",))))
    ours = {key for key in options(name, []) if key not in ("model", "tokenizer", "data", "optim", "preset")}
    hidden = {key for key in composed if key.startswith("facts.")} | {"model", "preset", "data"}
    assert ours - hidden == composed - hidden


def test_a_choice_brings_its_options():
    assert "data.files" in options("train", ["data=local"])
    assert "data.files" not in options("train", [])
    for choice in choices("data"):
        assert "data.min_chars" in options("train", [f"data={choice}"])
    assert options("train", ["data=nothing"])["train.max_steps"] == 1000
