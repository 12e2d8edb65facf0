"""The options of all commands, by the names that a command line gives them."""

from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from typing import Any

import yaml

from slm.train.components.quantization import QuantizationOptions
from tests.helpers import REPOSITORY

CONFIGS = REPOSITORY / "configs"


@cache
def known_options() -> frozenset[str]:
    """Every option of every command, and the groups."""
    names: set[str] = set()
    for path in sorted(CONFIGS.rglob("*.yaml")):
        tree = yaml.safe_load(path.read_text())
        if path.parent == CONFIGS:
            names.update(_flat(tree))
            if path.stem == "data_options":  # part of every file of the group data
                names.update(_flat(tree, "data."))
        else:
            group = path.parent.name
            names |= {group, *_flat(tree, f"{group}.")}
    # A component's options stand beside it, and in no file.
    names |= {f"components.quantization.{each.name}" for each in fields(QuantizationOptions)}
    return frozenset(names)


def _flat(tree: dict[str, Any] | None, prefix: str = "") -> Iterator[str]:
    for key, value in (tree or {}).items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
