"""Which GGUF files ``model=`` and ``serve.models=`` mean."""

from __future__ import annotations

import os
import re
from pathlib import Path

from data.errors import UserError, nearest
from slm import runs

_NAME = re.compile(r"[\w.@:+-][\w.@:+/-]{0,127}")

_PREFERRED = ("q4_k_m", "q8_0")


def resolve_model(model: str) -> tuple[Path, str | None]:
    """The GGUF file for a .gguf path, a run directory or a model directory with a gguf/ folder, and a line
    that says which was picked out of several (None where there was no choice).

    Raises ``UserError`` with what to do where there is none.
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
        raise UserError(f"{model} has no exported model yet; run `make export RUN={model}` first")
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
    """Files by name, the default first: ``model`` (called ``name``), then those of ``models``, each a path or
    ``NAME=PATH``; and a line for each that was picked out of several.

    Raises ``UserError`` for a path that names no model, a bad name, or one that two models would have.
    """
    if name and not model:
        raise UserError(f"serve.name is the name of model=; give it in the list: serve.models=[{name}=PATH]")
    given = [(name, model)] if model else []
    for word in models:
        if "=" in word and not os.path.exists(os.path.expanduser(word)):
            own, _, rest = word.partition("=")
            given.append((own.strip(), rest.strip()))
        else:
            given.append((None, word))
    found: dict[str, Path] = {}
    notes = []
    for own, word in given:
        if own is not None and (not _NAME.fullmatch(own) or own == "default"):
            raise UserError(f"{own[:100]!r} cannot be a model's name; use letters, digits and . _ - : + @ /")
        path, note = resolve_model(word)
        called = own or path.stem
        if called in found:
            if found[called] == path:
                continue
            raise UserError(
                f"two models are called {called} ({found[called]} and {path}); give one of them another name: "
                f"serve.models=[NAME={path}]"
            )
        found[called] = path
        if note:
            notes.append(note)
    return found, notes
