"""Options become checked dataclasses; every mistake is one line that names the nearest right thing."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from data.errors import UserError
from slm.configuration import build, choices, load_config


@dataclass(kw_only=True)
class Inner:
    size: int = 1
    kind: Literal["red", "green"] = "red"


@dataclass(kw_only=True)
class Outer:
    name: str
    rate: float = 0.5
    on: bool = False
    inner: Inner = field(default_factory=Inner)
    many: list[Inner] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    path: Path | None = None


def test_values_take_the_types_that_are_declared():
    built = build(
        Outer,
        {
            "name": 125,
            "rate": 1,
            "inner": {"size": 1e6, "kind": "green"},
            "many": [{"size": 2}, {}],
            "words": "one",
            "path": "a/b",
        },
    )
    assert (built.name, built.rate, built.inner) == ("125", 1.0, Inner(size=1_000_000, kind="green"))
    assert (built.many, built.words, built.path) == ([Inner(size=2), Inner()], ["one"], Path("a/b"))


@pytest.mark.parametrize(
    ("mapping", "says"),
    [
        ({}, "name must be given: add name=VALUE"),
        ({"name": "x", "inner": {"sise": 3}}, "no option inner.sise; did you mean 'size'?"),
        ({"name": "x", "inner": {"kind": "gren"}}, "inner.kind=gren is not known; did you mean 'green'"),
        ({"name": "x", "inner": 3}, "inner must be a group of options"),
        ({"name": "x", "rate": "fast"}, "rate must be a number, not 'fast'"),
        ({"name": "x", "inner": {"size": 1.5}}, "inner.size must be a whole number, not 1.5"),
        ({"name": "x", "on": "yes"}, "on must be true or false"),
        ({"name": "x", "many": [{"size": True}]}, "many[0].size must be a whole number"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(mapping, says):
    with pytest.raises(UserError) as caught:
        build(Outer, mapping)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("train.max_stps=5", "there is no option 'train.max_stps'; did you mean 'train.max_steps'"),
        ("preset=1250m", "there is no preset '1250m'; did you mean '125m'"),
        ("model=tinny", "there is no model 'tinny'; did you mean 'tiny'"),
        ("steps", "options are written key=value"),
        ("data.files=[~/a.txt]", "as in \"data.files=['~/a.txt']\""),
        ("name=a(1)", "as in \"name='a(1)'\""),
        ("train.max_steps=[", "cannot read 'train.max_steps=['"),
    ],
)
def test_hydras_refusals_are_one_line_with_the_nearest_name(override, says):
    with pytest.raises(UserError) as caught:
        load_config("train", [override])
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_comma_list_fills_a_list_option():
    resolved = load_config("train", ["data=local", "data.files=a.txt,b.txt"])
    assert resolved["data"]["files"] == ["a.txt", "b.txt"]


def test_a_persons_choice_of_group_wins_over_the_presets():
    resolved = load_config("train", ["preset=125m", "data=tales", "train.micro_batch=1"])
    assert resolved["data"]["kind"] == "tales"
    assert resolved["tokenizer"]["name"] == "gpt2"
    assert resolved["train"]["micro_batch"] == 1


@pytest.mark.parametrize("stage", ["train", "export", "evaluate", "serve"])
def test_help_prints_the_stages_options_and_succeeds(stage, capsys):
    with pytest.raises(SystemExit) as caught:
        load_config(stage, ["--help"])
    assert caught.value.code == 0
    assert "key=value" in capsys.readouterr().out


def test_every_preset_names_existing_choices():
    for preset in choices("preset"):
        assert load_config("train", [f"preset={preset}"])["preset"] == preset
