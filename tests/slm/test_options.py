"""The options that ``--help`` lists are all that there are, and a hint names the right one."""

import dataclasses
import typing

import pytest
import yaml

from slm.command import help
from slm.command.table import COMMANDS
from slm.options import CONFIG_DIR, INTERNAL, OFTEN, SYNONYMS, listed, names, option_hint, show
from tests.helpers.options import known_options
from tests.test_configs import GROUPS, STAGES


def fields(cls: type, prefix: str = "") -> set[str]:
    """The keys of a command's dataclass, groups of options by their members."""
    found = set()
    hints = typing.get_type_hints(cls)
    for each in (each for each in dataclasses.fields(cls) if each.init):
        inner = hints[each.name]
        key = f"{prefix}{each.name}"
        found |= fields(inner, f"{key}.") if dataclasses.is_dataclass(inner) else {key}
    return found


def flat(tree, prefix=""):
    for key, value in (tree or {}).items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


@pytest.mark.parametrize("name", STAGES)
def test_every_field_of_a_commands_dataclass_is_listed(name):
    shown = set(names(name))
    missing = {key for key in fields(STAGES[name]) - shown if key.partition(".")[0] not in INTERNAL}
    assert missing <= NOT_TYPED


NOT_TYPED = {"data.with_files", "data.weight", "data.validated"}
"""What the sources of a mixture have, which stands in a file of the group data."""


@pytest.mark.parametrize("path", sorted(CONFIG_DIR.rglob("*.yaml")), ids=lambda path: str(path.relative_to(CONFIG_DIR)))
def test_every_option_of_every_file_is_listed_with_its_default(path):
    tree = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    group = path.parent.name if path.parent != CONFIG_DIR else ""
    if group == "preset" or path.stem == "data_options":
        return  # set what others list; listed with each file of the group data
    includes = [each for each in tree.pop("defaults", []) if isinstance(each, str)]
    options = {each.key: each for each in listed("train" if group else path.stem)}
    for key, value in flat(tree, f"{group}." if group else ""):
        assert key in options or key in NOT_TYPED, key
        if not group and "train" not in includes:
            assert yaml.safe_load(options[key].default) == value, key


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_prints_each_once_and_fits_the_terminal(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    help.print_command(name)
    out = capsys.readouterr().out
    own = COMMANDS[name].model_key
    lines = out.partition("\nOptions of configs")[2].splitlines()
    printed = [line.strip().partition("=")[0] for line in lines if line.startswith("  ") and line[2] != " "]
    hidden = {own: "model"} if own in ("run", "runs", "base") else {}
    wanted = {hidden.get(key, key) for key in names(COMMANDS[name].config)}
    assert sorted(printed) == sorted(wanted | {"json"})
    assert max(map(len, out.splitlines())) <= 80


def test_the_list_of_commands_fits_the_terminal(monkeypatch):
    for width in (80, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        lines = help.overview("1.2.3").splitlines()
        assert max(map(len, lines)) <= width
        assert {line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "} >= set(COMMANDS)
    assert max(map(len, help.COMPLETION.splitlines())) <= 80


def test_what_is_asked_for_most_comes_first_and_a_word_filters(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = show("train")
    assert text.startswith("Most used:\n  preset=tiny ")
    found = [text.index(each) for each in ("  data.files=", "  optim.lr=", "\nlora:", "  lora.targets=")]
    assert found == sorted(found)
    assert "(data=chat|local|wikipedia_stories)" in text
    filtered = show("train", wanted="warmup")
    assert "  optim.warmup_steps=0" in filtered
    assert "train.max_steps" not in filtered
    assert "did you mean 'optim.lr'" in show("train", wanted="learning_rate")
    assert not any(each.key.startswith("facts") for each in listed("train"))


def test_the_tables_name_options_that_there_are():
    known = known_options() | {"nproc"}
    assert set(OFTEN) <= known
    assert {each for meant in SYNONYMS.values() for each in meant} <= known
    assert set(GROUPS) <= set(names("train"))


@pytest.mark.parametrize(
    ("command", "typed", "meant"),
    [
        ("train", "lr", "optim.lr"),
        ("train", "learning_rate", "optim.lr"),
        ("train", "train.lr", "optim.lr"),
        ("train", "epochs", "data.max_epochs"),
        ("train", "batch_size", "train.micro_batch"),
        ("train", "steps", "train.max_steps"),
        ("train", "lora", "lora.rank"),
        ("tune", "lora", "tune.lora"),
        ("train", "seq_length", "train.seq_len"),
        ("train", "CONFIG", "preset"),
        ("train", "max_stps", "train.max_steps"),
        ("train", "n_params", None),
        ("train", "flops_per_token", None),
        ("export", "QUANT", "quant"),
        ("serve", "ctx", "serve.context"),
        ("serve", "api_key", "serve.api_keys"),
        ("terminal", "temp", "temperature"),
        ("train", "seed", "train.seed"),
        ("bench_quant", "types", "quant"),
    ],
)
def test_hints(command, typed, meant):
    known = [*names(command), "facts.n_params", "facts.flops_per_token"]
    hint = option_hint(typed, known)
    assert "facts" not in hint
    if meant:
        assert hint.startswith(f"did you mean {meant!r}")


@pytest.mark.parametrize("typed", ["dropout", "fact", "xyz"])
def test_a_chance_likeness_is_no_hint(typed):
    assert option_hint(typed, [*names("train"), "optim", "data"]) == ""
