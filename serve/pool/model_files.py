"""From the words of ``model=`` and ``serve.models=`` to GGUF files."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from glob import escape
from pathlib import Path

from slm import runs
from slm.cli import spelled
from slm.data.errors import UserError
from slm.from_gguf import stores
from slm.hub import models
from slm.hub.name import HubName, hub_name
from slm.llama.adapter_file import check_fits
from slm.llama.gguf_check import SPLIT_NAME

_NAME = re.compile(r"[\w.@:+-][\w.@:+/-]{0,127}")

_SCALE = re.compile(r"-?\d{1,3}(\.\d{1,6})?")

_PREFERRED = ("q4_k_m", "q8_0")


def resolve_model(model: str) -> tuple[Path, str | None]:
    """The GGUF file of a .gguf path, a run directory, a model directory with a gguf/ folder, a model of another
    program's (``ollama:NAME``, ``lmstudio:NAME``), or of one on the Hugging Face Hub (``org/name``,
    ``org/name:Q4_K_M``), which is then downloaded.

    The second value is a line that names the file picked out of several, None where there was one only. Raises
    ``UserError``, which says what to do, where there is no file.
    """
    if (name := hub_name(model)) is not None:
        return _of_the_hub(name)
    if stored := stores.find(model):
        return stored.path, None
    path = runs.place(model)
    if path.is_file():
        if path.suffix != ".gguf" and not stores.holds_gguf(path):
            raise UserError(f"{model} is no model: give a .gguf file, a run, a model directory, or org/name on the Hub")
        return path, None
    found = runs.model_files(path)
    if not found:
        found = runs.resolve(path).ggufs()
    if not found:
        raise UserError(f"{model} has no exported model yet; run `{spelled('export', run=model)}` first")
    return _pick(found)


def _of_the_hub(name: HubName) -> tuple[Path, str | None]:
    """A file that was exported here from the named model, else one that its repository holds."""
    folder = models.made_folder(name) / "gguf"
    made = runs.model_files(folder)
    fitting = models.choose([path.name for path in made], name, strict=False) if name.quant else []
    if fitting or (made and not name.quant):
        path, note = (folder / fitting[0], None) if fitting else _pick(made)
        return path, note or f"serving {path}, which was exported here from {name.words}"
    found = models.gguf(name)
    if found is None:
        raise UserError(
            f"{name.words} holds no GGUF file; make one with `{spelled('export', run=name.words)}`, then run this again"
        )
    return found, None


def _pick(found: list[Path]) -> tuple[Path, str | None]:
    if len(found) == 1:
        return found[0], None
    for quant in _PREFERRED:
        for path in found:
            if _stem(path).lower().endswith(quant):
                return path, f"of {len(found)} exported files, serving {path.name} ({quant})"
    smallest = min(found, key=_size)
    return smallest, f"of {len(found)} exported files, serving {smallest.name} (the smallest)"


def _stem(path: Path) -> str:
    """A file's name without its ending, and without the number of the part."""
    part = SPLIT_NAME.fullmatch(path.name)
    return part[1] if part else path.stem


def _size(path: Path) -> int:
    """Bytes of a model, with all of its parts."""
    part = SPLIT_NAME.fullmatch(path.name)
    files = path.parent.glob(f"{escape(part[1])}-*-of-{part[3]}.gguf") if part else [path]
    return sum(each.stat().st_size for each in files)


def resolve_adapter(word: str) -> Path:
    """The exported adapter of a run that trained one, or the .gguf file that ``word`` names. ``UserError`` where there
    is none."""
    path = runs.place(word)
    if path.is_file() or path.suffix == ".gguf":
        return path
    if (path / "adapter_config.json").is_file():
        raise UserError(
            f"{word} is an adapter in PEFT's form, and a server takes GGUF: `{spelled('export', run='runs/NAME')}` of "
            "the run that trained it writes one, then give that run or its -LoRA.gguf"
        )
    found = runs.resolve(path).adapters()
    if not found:
        raise UserError(
            f"{word} has no exported LoRA adapter: run `{spelled('export', run=word)}` first, if it trained one"
        )
    return max(found, key=lambda each: each.stat().st_mtime_ns)


@dataclass(frozen=True)
class ScaledAdapter:
    """The file of an adapter, and by what its part is multiplied."""

    path: Path
    scale: float = 1.0


def named_adapters(words: list[str], base: tuple[str, Path], taken: Collection[str]) -> dict[str, ScaledAdapter]:
    """Adapters of the model ``base`` (its name and file) by name, from ``serve.lora``'s ``NAME=PATH`` or paths, each
    with its scale behind a colon where that is not 1.

    Without a name one has its run's, or its file's. ``UserError`` for an adapter of another model, and for a name that
    is ``taken`` or impossible.
    """
    found: dict[str, ScaledAdapter] = {}
    for word in words:
        name, rest = _split_name(word)
        rest, scale = _split_scale(rest)
        path = resolve_adapter(rest)
        name = name or (path.stem if Path(rest).suffix == ".gguf" else runs.resolve(rest).name)
        _check_name(name)
        if name in taken or name in found:
            raise UserError(f"two models are called {name}: give the adapter another name, serve.lora=[NAME={rest}]")
        check_fits(path, base[1])
        found[name] = ScaledAdapter(path, scale)
    return found


def _split_scale(word: str) -> tuple[str, float]:
    path, colon, scale = word.rpartition(":")
    if not colon or not _SCALE.fullmatch(scale) or os.path.exists(os.path.expanduser(word)):
        return word, 1.0
    return path, float(scale)


def _split_name(word: str) -> tuple[str | None, str]:
    if "=" in word and not os.path.exists(os.path.expanduser(word)):
        name, _, rest = word.partition("=")
        return name.strip(), rest.strip()
    return None, word


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name) or name == "default":
        raise UserError(f"{name[:100]!r} cannot be a model's name; use letters, digits and . _ - : + @ /")


def named_models(model: str | None, name: str | None, models: list[str]) -> tuple[dict[str, Path], list[str]]:
    """Files by the model's name, the default model first.

    The default is ``model`` (with the name ``name``, where given). Those of ``models`` follow, each a path or
    ``NAME=PATH``. The second value has a line for each file that was picked out of several. Raises ``UserError`` for a
    path without a model, a name with other characters than it may have, and a name that two models would have.
    """
    if name and not model:
        raise UserError(f"serve.name is the name of model=; give it in the list: serve.models=[{name}=PATH]")
    given: list[tuple[str | None, str]] = [(name, model)] if model else []
    given += [_split_name(word) for word in models]
    found: dict[str, Path] = {}
    notes = []
    for chosen_name, word in given:
        if chosen_name is not None:
            _check_name(chosen_name)
        path, note = resolve_model(word)
        stored = stores.find(word)
        unique = chosen_name or (stored.name if stored else _stem(path))
        if unique == "default" and found and "default" not in found:
            raise UserError(f"default is the first model's other name: give {path} one, serve.models=[NAME={path}]")
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
