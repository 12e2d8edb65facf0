"""From the words of ``model=`` and ``serve.models=`` to GGUF files."""

from __future__ import annotations

import os
import re
from pathlib import Path

from data.errors import UserError, nearest
from slm import runs
from slm.cli import spelled

_NAME = re.compile(r"[\w.@:+-][\w.@:+/-]{0,127}")

_PREFERRED = ("q4_k_m", "q8_0")


def resolve_model(model: str) -> tuple[Path, str | None]:
    """The GGUF file of a .gguf path, a run directory, or a model directory with a gguf/ folder.

    The second value is a line that names the file picked out of several, None where there was one only. Raises
    ``UserError``, which says what to do, where there is no file.
    """
    path = Path(model).expanduser()
    if path.is_file():
        return path, None
    if path.suffix == ".gguf":
        folder = path.parent
        there = [each.name for each in sorted(folder.glob("*.gguf"))] if folder.is_dir() else []
        hint = nearest(path.name, there) or (f"there are: {', '.join(there)}" if there else "")
        raise UserError(f"{path} does not exist; {hint}".rstrip("; "))
    found = sorted(path.glob("*.gguf")) if path.is_dir() else []
    found = [each for each in found if not each.name.startswith("imatrix")]
    if not found:
        found = runs.resolve(path).ggufs()
    if not found:
        raise UserError(f"{model} has no exported model yet; run `{spelled('export', run=model)}` first")
    return _pick(found)


def _pick(found: list[Path]) -> tuple[Path, str | None]:
    if len(found) == 1:
        return found[0], None
    for quant in _PREFERRED:
        for path in found:
            if path.stem.lower().endswith(quant):
                return path, f"of {len(found)} exported files, serving {path.name} ({quant})"
    smallest = min(found, key=lambda path: path.stat().st_size)
    return smallest, f"of {len(found)} exported files, serving {smallest.name} (the smallest)"


def named_models(model: str | None, name: str | None, models: list[str]) -> tuple[dict[str, Path], list[str]]:
    """Files by the model's name, the default model first.

    The default is ``model`` (with the name ``name``, where given). Those of ``models`` follow, each a path or
    ``NAME=PATH``. The second value has a line for each file that was picked out of several. Raises ``UserError`` for a
    path without a model, a name with other characters than it may have, and a name that two models would have.
    """
    if name and not model:
        raise UserError(f"serve.name is the name of model=; give it in the list: serve.models=[{name}=PATH]")
    given: list[tuple[str | None, str]] = [(name, model)] if model else []
    for word in models:
        if "=" in word and not os.path.exists(os.path.expanduser(word)):
            given_name, _, rest = word.partition("=")
            given.append((given_name.strip(), rest.strip()))
        else:
            given.append((None, word))
    found: dict[str, Path] = {}
    notes = []
    for chosen_name, word in given:
        if chosen_name is not None and (not _NAME.fullmatch(chosen_name) or chosen_name == "default"):
            raise UserError(f"{chosen_name[:100]!r} cannot be a model's name; use letters, digits and . _ - : + @ /")
        path, note = resolve_model(word)
        unique = chosen_name or path.stem
        if unique in found:
            if found[unique] == path:
                continue
            raise UserError(
                f"two models are called {unique} ({found[unique]} and {path}); give one of them another name: "
                f"serve.models=[NAME={path}]"
            )
        found[unique] = path
        if note:
            notes.append(note)
    return found, notes
