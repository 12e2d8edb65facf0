"""Options become checked dataclasses; every mistake is one line that names the nearest right thing."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from slm.configuration import build, choices, load, load_config, to_dict
from slm.data.errors import UserError


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


@dataclass(kw_only=True, frozen=True)
class Sampling:
    """configs/terminal.yaml."""

    model: Path
    prompt: str | None
    system: str | None
    max_tokens: int
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repeat_penalty: float | None
    seed: int | None
    context: int
    threads: int
    n_gpu_layers: int
    parse_special_in_content: bool


def test_one_call_goes_from_the_words_to_the_checked_object():
    config = load(Sampling, "terminal", ["model=a(1) b.gguf", "top_k=7"], literal=("model",))
    assert (config.model, config.top_k, config.prompt) == (Path("a(1) b.gguf"), 7, None)
    with pytest.raises(UserError, match="top_k must be a whole number"):
        load(Sampling, "terminal", ["model=a", "top_k=x"], literal=("model",))
    with pytest.raises(SystemExit):
        load(Sampling, "terminal", ["--help"])


def test_literal_options_are_taken_as_they_are_typed():
    words = ["model=a,b=(c).gguf", "serve.models=[x.gguf,'NAME=y z.gguf']", "serve.api_keys=k1", "port=1"]
    values = load_config("serve", words, literal=("model", "serve.models", "serve.draft_model", "serve.api_keys"))
    assert values["model"] == "a,b=(c).gguf"
    assert values["serve"]["models"] == ["x.gguf", "NAME=y z.gguf"]
    assert values["serve"]["api_keys"] == ["k1"]
    assert values["serve"]["draft_model"] is None
    assert values["port"] == 1
    with pytest.raises(UserError, match="key=value"):
        load_config("serve", ["model"], literal=("model",))


def test_plain_values_and_back():
    config = build(Outer, {"name": "x", "path": "a/b", "inner": {"size": 2}, "many": [{"size": 3}], "words": ["w"]})
    values = to_dict(config)
    assert values["path"] == "a/b"
    assert values["many"] == [{"size": 3, "kind": "red"}]
    assert build(Outer, values) == config


@pytest.mark.parametrize("value", ["5", "null", "text"])
def test_a_value_in_the_place_of_a_group_is_one_line(value):
    with pytest.raises(UserError, match=r"train is a group of options, not .*: .* as in train\.max_steps="):
        load_config("train", [f"train={value}"])


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("[a,'b']", ["a", "b"]),
        ("a, b", ["a", "b"]),
        ("['a, b','c'] ", ["a, b", "c"]),
        ("['it's, a',\"b\"]", ["it's, a", "b"]),
        ("it's", ["it's"]),
        ("['it's']", ["it's"]),
        ("'a", ["'a"]),
        ("[]", []),
    ],
)
def test_a_literal_list_has_any_characters(text, items):
    words = ["model=x", f"serve.models={text}"]
    assert load_config("serve", words, literal=("model", "serve.models"))["serve"]["models"] == items


@pytest.mark.parametrize("stage", ["train", "data_stats", "export", "serve", "report"])
@pytest.mark.parametrize(
    "word",
    [
        "optim=[1,2]",
        "optim={a:1}",
        "optim=null",
        "optim=true",
        "optim=1.5",
        "optim=adamw,adamw",
        "optim@=adamw",
        "~optim",
        "~train",
        "@x=1",
        "hydra=5",
        "train=[1]",
        "train.max_steps=${foo}",
        "train.max_steps=${",
        "train.max_steps=range(1,5)",
        "name='abc",
        "=5",
    ],
)
def test_words_that_hydra_does_not_expect_are_one_line(stage, word):
    with pytest.raises(UserError) as caught:
        load_config(stage, [word])
    assert "\n" not in str(caught.value)


def test_a_group_takes_one_name():
    with pytest.raises(UserError, match=r"^optim takes one name, not '\[1,2\]': optim is one of: .*adamw"):
        load_config("train", ["optim=[1,2]"])


def test_an_option_of_other_data_names_the_choice_that_has_it():
    with pytest.raises(
        UserError,
        match=r"data\.files is an option of data=chat, data=local and data=wikipedia_stories: add one of them",
    ):
        load_config("train", ["preset=tiny", "data.files=[a.txt]"])
    with pytest.raises(UserError, match=r"data\.separator is an option of data=local: add data=local to the command"):
        load_config("train", ["preset=tiny", "data.separator=x"])


def test_an_empty_item_of_a_list_is_kept_only_in_quotes():
    literal = ("model", "serve.api_keys")
    for word, items in (("['']", [""]), ("[a, ,b]", ["a", "b"]), ("[]", []), ("null", []), ("[' a']", [" a"])):
        found = load_config("serve", ["model=x", f"serve.api_keys={word}"], literal=literal)
        assert found["serve"]["api_keys"] == items


def test_several_values_are_refused_with_what_would_be_right():
    with pytest.raises(UserError, match=r"optim.lr takes one value, not 0.01,0.02: .*compare values with"):
        load_config("train", ["optim.lr=0.01,0.02"])


def test_a_path_may_begin_with_the_home_directory(monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")

    @dataclass(frozen=True, kw_only=True)
    class Options:
        text: Path

    assert build(Options, {"text": "~/x.txt"}).text == Path("/home/somebody/x.txt")
    assert build(Options, {"text": "~nobody.txt"}).text == Path("~nobody.txt")


def test_a_yes_or_no_for_a_text_names_the_help():
    with pytest.raises(UserError, match="name takes a text, not true; help=name says which"):
        build(Outer, {"name": True})
