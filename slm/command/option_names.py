"""The options of a command with their defaults, read from the YAML files alone: Hydra takes too long for a Tab key."""

from typing import Any

import yaml

from slm.options import CONFIG_DIR


def options(config_name: str, words: list[str]) -> dict[str, Any]:
    """Every key of ``configs/<config_name>.yaml`` and of the files it includes, with its default, in their order.

    ``words``: ``key=value`` words of the command line; ``data=local`` chooses the file with the options that there are.
    """
    chosen = dict(word.split("=", 1) for word in words)
    found: dict[str, Any] = {}
    _collect(config_name, "", chosen, found)
    return found


def _collect(name: str, prefix: str, chosen: dict[str, str], found: dict[str, Any]) -> None:
    """Add the keys of ``configs/<name>.yaml``, each after ``prefix``."""
    path = CONFIG_DIR / f"{name}.yaml"
    if not path.is_file():
        return  # a choice that there is not: the command will say so
    tree = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    for entry in tree.pop("defaults", []):
        if isinstance(entry, str) and entry != "_self_":
            # An included file: "train", or "/data_options@_here_".
            _collect(entry.lstrip("/").partition("@")[0], prefix, chosen, found)
        elif isinstance(entry, dict):
            for group, choice in entry.items():
                if group.startswith("override "):
                    continue
                found.setdefault(group, choice)
                if group != "preset":  # its keys are everybody's
                    _collect(f"{group}/{chosen.get(group, choice)}", f"{group}.", chosen, found)
    _flatten(tree, prefix, found)


def _flatten(tree: dict[str, Any], prefix: str, found: dict[str, Any]) -> None:
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            _flatten(value, f"{prefix}{key}.", found)
        else:
            found[f"{prefix}{key}"] = value
