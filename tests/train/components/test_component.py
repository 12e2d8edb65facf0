"""A new component is one file and its YAML: the example of CONTRIBUTING.md, as a run has it."""

import re
from functools import partial
from pathlib import Path

import pytest
import yaml

from slm.configuration import build, load_config
from slm.data.errors import UserError
from slm.train import components
from slm.train.components.component import Component
from slm.train.components.make import make_components
from slm.train.config import RunConfig
from tests.helpers import REPOSITORY
from tests.helpers.small_run import SmallRun, losses, records


def example(language: str) -> str:
    """A block of code of the section on a new trick."""
    text = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.partition("## A new trick of training")[2].partition("\n## ")[0]
    (block,) = re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)
    return block


def add(folder: Path) -> None:
    """The modules of ``folder`` stand beside the components."""
    components.__path__.append(str(folder))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(components, "__path__", list(components.__path__))
    made = tmp_path / "components"
    made.mkdir()
    (made / "growing_batch.py").write_text(example("python"))
    return made


def test_the_example_is_one_file_and_its_yaml(folder, corpus, tmp_path):
    options = yaml.safe_load(example("yaml"))["components"]["growing_batch"]
    words = [f"+components.growing_batch.{name}={value}" for name, value in options.items()]
    words += [f"data.files=[{corpus}]", "train.grad_accum=4", "train.max_steps=6", "train.checkpoint_every=3"]
    run = SmallRun(tmp_path / "runs", "name=growing", *words, prepare=partial(add, folder)).finish()
    tokens = [each["tokens"] for each in records(run.root) if "lr" in each]
    assert tokens == [128 * passes for passes in (1, 2, 3, 7, 11, 15)]
    assert losses(run.root)[6] < losses(run.root)[1]
    again = [*words[1:], "+components.growing_batch.first=2"]
    other = SmallRun(tmp_path / "runs", "name=growing", *again, prepare=partial(add, folder))
    assert other.wait() == 2
    assert "components.growing_batch.first was 1, now 2" in other.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["+components.growing_batch.first=9"], r"first is 9 and must be from 1 to train\.grad_accum=1"),
        (["+components.growing_batch.frist=1"], r"no option components\.growing_batch\.frist; did you mean 'first'"),
        (
            ["+components.growing_bach.first=1"],
            "no such component with its own options; did you mean 'growing_batch'",
        ),
        (["+components.phases.most=1"], "no such component with its own options"),
        (["+components.patience.most=1"], r"components\.patience are options of train\.patience"),
    ],
)
def test_what_does_not_fit_is_said(folder, words, message):
    add(folder)
    config = build(RunConfig, load_config("train", ["preset=tiny", "name=any", *words]))
    with pytest.raises(UserError, match=message):
        make_components(config)


def test_a_component_without_hooks_changes_nothing():
    plain = Component()
    assert plain.state_dict() == {}
    assert plain.shared() == []
    assert not plain.at_end()
    assert plain.closing_seconds() == 0.0
    assert plain.jumped(1e9) is None
