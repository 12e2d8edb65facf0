"""The YAML files under configs/ and the dataclasses that check them name the same options and the same defaults.

The rule: a stage's YAML file lists every option of its dataclass, since ``--help`` prints the file. A dataclass may
have a default as well, for callers in Python; it is then the file's own. Files of a group (``data=wikitext``) are
choices: what they set may differ from the default, but must be known.
"""

import dataclasses
import typing
from pathlib import Path
from typing import Any

import pytest
import yaml

from slm.command.checkpoint import CheckpointConfig
from slm.configuration import CONFIG_DIR, build, to_dict
from slm.data.config import DataConfig, TokenizerConfig
from slm.doctor.__main__ import DoctorOptions
from slm.evaluate.config import EvaluateConfig
from slm.evaluate.exam.config import ExamConfig
from slm.export.bench.config import SweepConfig
from slm.export.config import ExportConfig, VerifyConfig
from slm.hub.publish import PublishConfig
from slm.serve.bench.config import BenchConfig as BenchServeConfig
from slm.serve.config import ServeConfig, TerminalConfig
from slm.studio.config import StudioConfig
from slm.train.bench_recipe.config import BenchRecipeConfig
from slm.train.config import LoggerConfig, ModelSpec, OptimConfig, RunConfig
from slm.train.report.html import ReportConfig
from slm.train.report.watch import WatchConfig
from slm.train.sweep.config import SweepConfig as TrainSweepConfig
from slm.train.tools.bench import BenchConfig as BenchTrainConfig
from slm.train.tools.data_stats import DataStatsConfig
from slm.train.tools.plan_config import PlanConfig
from slm.train.tools.prepare import PrepareConfig
from slm.train.tune.config import QatConfig, TuneConfig

STAGES: dict[str, type] = {
    "train": RunConfig,
    "bench_train": BenchTrainConfig,
    "data_stats": DataStatsConfig,
    "plan": PlanConfig,
    "prepare": PrepareConfig,
    "tune": TuneConfig,
    "qat": QatConfig,
    "sweep": TrainSweepConfig,
    "bench_recipe": BenchRecipeConfig,
    "report": ReportConfig,
    "watch": WatchConfig,
    "export": ExportConfig,
    "checkpoint": CheckpointConfig,
    "verify": VerifyConfig,
    "bench_quant": SweepConfig,
    "evaluate": EvaluateConfig,
    "exam": ExamConfig,
    "publish": PublishConfig,
    "doctor": DoctorOptions,
    "serve": ServeConfig,
    "bench_serve": BenchServeConfig,
    "terminal": TerminalConfig,
    "studio": StudioConfig,
}
GROUPS: dict[str, type] = {
    "data": DataConfig,
    "logger": LoggerConfig,
    "model": ModelSpec,
    "optim": OptimConfig,
    "tokenizer": TokenizerConfig,
}
DEFAULTS_OF_GROUPS = {"data_options": DataConfig, "optim/adamw": OptimConfig, "logger/none": LoggerConfig}
"""Files that hold a group's defaults rather than a choice."""
OF_PRESETS = {"preset", "facts"}
"""What every preset sets and no person."""


def read(name: str) -> dict[str, Any]:
    """A file as it stands, without what its ``defaults`` would bring in."""
    tree = yaml.safe_load((CONFIG_DIR / f"{name}.yaml").read_text(encoding="utf-8"))
    tree.pop("defaults", None)
    return tree


def nested(hint: Any) -> type | None:
    return hint if dataclasses.is_dataclass(hint) else None


def default(field: dataclasses.Field) -> Any:
    """A field's default as plain values, or MISSING."""
    if field.default_factory is not dataclasses.MISSING:
        return plain(field.default_factory())
    return plain(field.default)


def plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_dict(value)
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value


def refers(value: Any) -> bool:
    """Whether the value is another option's, as ``${facts.adamw_lr}``."""
    return isinstance(value, str) and value.startswith("${")


def differences(cls: type, tree: dict[str, Any], where: str = "", *, complete: bool = True) -> list[str]:
    """What does not agree between a dataclass and a YAML tree. ``complete``: the tree lists every field."""
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    hints = typing.get_type_hints(cls)
    found = [f"{where}{key} is in the file, and {cls.__name__} does not know it" for key in set(tree) - set(fields)]
    for name, field in fields.items():
        inner = nested(hints[name])
        if name not in tree:
            if complete and name not in OF_PRESETS and name not in GROUPS:
                found.append(f"{where}{name} is in {cls.__name__}, and not in the file")
        elif inner:
            found += differences(inner, tree[name], f"{where}{name}.", complete=complete)
        elif default(field) is not dataclasses.MISSING and default(field) != tree[name] and not refers(tree[name]):
            found.append(f"{where}{name} is {tree[name]!r} in the file and {default(field)!r} in {cls.__name__}")
    return sorted(found)


def test_every_file_is_here():
    files = {path.stem for path in CONFIG_DIR.glob("*.yaml")}
    assert files == set(STAGES) | {"data_options"}
    groups = {path.name for path in CONFIG_DIR.iterdir() if path.is_dir()}
    assert groups == set(GROUPS) | {"preset"}


@pytest.mark.parametrize("name", STAGES)
def test_a_stages_file_and_dataclass_have_the_same_options_and_defaults(name):
    cls = STAGES[name]
    tree = read(name)
    if issubclass(cls, RunConfig) and cls is not RunConfig:  # the rest is train.yaml's
        tree = read("train") | tree
    assert differences(cls, tree) == []


@pytest.mark.parametrize("name", DEFAULTS_OF_GROUPS)
def test_the_defaults_of_groups_are_those_of_their_dataclasses(name):
    assert differences(DEFAULTS_OF_GROUPS[name], read(name), complete=False) == []


@pytest.mark.parametrize("group", GROUPS)
def test_choices_of_a_group_name_options_that_there_are(group):
    fields = {field.name for field in dataclasses.fields(GROUPS[group])}
    for path in (CONFIG_DIR / group).glob("*.yaml"):
        unknown = set(read(f"{group}/{path.stem}")) - fields
        assert not unknown, f"{path.name}: {unknown}"


def test_presets_set_options_that_there_are():
    for path in (CONFIG_DIR / "preset").glob("*.yaml"):
        tree = read(f"preset/{path.stem}")
        assert set(tree) <= {field.name for field in dataclasses.fields(RunConfig)}, path.name
        for name, cls in {**GROUPS, "train": typing.get_type_hints(RunConfig)["train"]}.items():
            unknown = set(tree.get(name, {})) - {field.name for field in dataclasses.fields(cls)}
            assert not unknown, f"{path.name}: {name}.{unknown}"


def test_what_differs_is_found():
    @dataclasses.dataclass(kw_only=True)
    class Group:
        a: int = 1
        b: int

    found = differences(Group, {"a": 2, "c": 3})
    assert found == [
        "a is 2 in the file and 1 in Group",
        "b is in Group, and not in the file",
        "c is in the file, and Group does not know it",
    ]
    assert differences(Group, {"a": 1, "b": 5}) == []
    assert build(Group, {"b": 5}).a == 1
