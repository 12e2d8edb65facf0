"""GGUF files that other programs have downloaded, by the names that these give them: ``ollama:smollm2:135m`` and
``lmstudio:org/name``.

Tested in tests/slm/from_gguf/test_stores.py.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slm.data.errors import UserError, nearest

PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)
"""How the name of a part of a split file ends."""
OLLAMA, LM_STUDIO = "ollama:", "lmstudio:"
_REGISTRY, _LIBRARY, _TAG = "registry.ollama.ai", "library", "latest"
_MODEL = "application/vnd.ollama.image.model"
_ADAPTER = "application/vnd.ollama.image.adapter"


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A file of a store."""

    path: Path
    name: str
    """What things that are made of it are called."""


def is_named(word: str) -> bool:
    """Whether ``word`` is a GGUF file's name, of a store or a path; whether it exists is another question."""
    if word.startswith((OLLAMA, LM_STUDIO)):
        return True
    return (word.lower().endswith(".gguf") and not Path(word).is_dir()) or holds_gguf(Path(word))


def holds_gguf(path: Path) -> bool:
    """Whether a file begins as a GGUF does, whatever its name: Ollama's are called by their digests."""
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except (OSError, ValueError):  # no file, a folder, or a word that can be no path
        return False


def find(word: str) -> Stored | None:
    """The GGUF file that ``word`` names: a path, or a name of a store. None for anything else.

    ``UserError`` for a name that the store does not have, with those that it has, and for a file that is missing.
    """
    if word.startswith(OLLAMA):
        return _of_ollama(word.removeprefix(OLLAMA))
    if word.startswith(LM_STUDIO):
        return _of_lm_studio(word.removeprefix(LM_STUDIO))
    path = Path(os.path.expanduser(word))
    if not is_named(str(path)):
        return None
    if not path.is_file():
        folder = path.parent
        there = [each.name for each in sorted(folder.glob("*.gguf"))] if folder.is_dir() else []
        hint = nearest(path.name, there) or (f"there are: {', '.join(there[:8])}" if there else "check the path")
        raise UserError(f"{path} does not exist; {hint}")
    return Stored(path=path, name=stem(path))


def stem(path: Path) -> str:
    """The file's name without its ending and without the number of a part."""
    found = PART.search(path.name)
    return path.name[: found.start()] if found else re.sub(r"\.gguf$", "", path.name, flags=re.IGNORECASE)


def ollama_folders() -> list[Path]:
    """Where Ollama keeps models: ``OLLAMA_MODELS``, else the home directory's folder and that of its Linux service."""
    if named := os.environ.get("OLLAMA_MODELS"):
        return [Path(named)]
    return [Path(os.path.expanduser("~/.ollama/models")), Path("/usr/share/ollama/.ollama/models")]


def lm_studio_folders() -> list[Path]:
    """Where LM Studio keeps models: the folder that a person has chosen, then its usual ones, the newest first."""
    homes = [Path(os.path.expanduser(each)) for each in ("~/.lmstudio", "~/.cache/lm-studio")]
    found = []
    for home in homes:
        try:
            chosen = json.loads((home / "settings.json").read_text(encoding="utf-8")).get("downloadsFolder")
        except (OSError, ValueError, AttributeError):
            continue
        if isinstance(chosen, str) and chosen:
            found.append(Path(chosen))
    return list(dict.fromkeys([*found, *(home / "models" for home in homes)]))


def _of_ollama(name: str) -> Stored:
    folders = [each for each in ollama_folders() if (each / "manifests").is_dir()]
    path, _, tag = name.partition(":")
    parts = [part for part in path.split("/") if part]
    if len(parts) == 1:
        parts = [_LIBRARY, *parts]
    if len(parts) == 2:
        parts = [_REGISTRY, *parts]
    for folder in folders:
        manifest = folder.joinpath("manifests", *parts, tag or _TAG)
        if manifest.is_file():
            shown = re.sub(r"[^\w.-]+", "-", f"{parts[-1]}-{tag}" if tag else parts[-1])
            return Stored(path=_blob(folder, manifest, name), name=shown)
    there = [each for folder in folders for each in _ollama_names(folder)]
    hint = nearest(name, there) or (f"there are: {', '.join(there[:12])}" if there else "")
    where = ", ".join(str(each) for each in folders) or f"there is no such store ({ollama_folders()[0]})"
    raise UserError(
        f"Ollama has no model {name} here ({where}); {hint or 'set OLLAMA_MODELS to its folder'}; `ollama pull {name}` "
        "downloads it"
    )


def _blob(folder: Path, manifest: Path, name: str) -> Path:
    """The model's file that a manifest names."""
    try:
        layers = json.loads(manifest.read_text(encoding="utf-8"))["layers"]
        digests = [each["digest"] for each in layers if each["mediaType"] == _MODEL]
        adapted = any(each["mediaType"] == _ADAPTER for each in layers)
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise UserError(f"{manifest} cannot be read ({error}): `ollama pull {name}` writes it again") from error
    if len(digests) != 1:
        raise UserError(f"Ollama's {name} has {len(digests)} model files, and one is needed: name another model")
    if adapted:
        print(f"note: Ollama's {name} has a LoRA adapter, which is left out: the model alone is taken", flush=True)
    path = folder / "blobs" / digests[0].replace(":", "-")
    if not path.is_file():
        raise UserError(f"{path} is missing, the file of Ollama's {name}: `ollama pull {name}` downloads it again")
    return path


def _ollama_names(folder: Path) -> Iterator[str]:
    """The models of a store as a person writes them."""
    root = folder / "manifests"
    for path in sorted(each for each in root.rglob("*") if each.is_file() and not each.name.startswith(".")):
        parts = path.relative_to(root).parts
        if len(parts) >= 3:
            *owner, tag = parts
            short = owner[1:] if owner[0] == _REGISTRY else owner
            short = short[1:] if short[0] == _LIBRARY and len(short) == 2 else short
            yield f"{'/'.join(short)}:{tag}"


def _of_lm_studio(name: str) -> Stored:
    folders = [each for each in lm_studio_folders() if each.is_dir()]
    files = {
        path.relative_to(folder).as_posix(): path
        for folder in reversed(folders)
        for path in sorted(folder.rglob("*.gguf"))
        if "mmproj" not in path.name.lower() and not _is_later_part(path)
    }
    wanted, _, quant = name.partition(":")
    fitting = [
        key
        for key in files
        if (key == wanted or key.startswith(f"{wanted}/") or key.endswith((f"/{wanted}", f"/{wanted}.gguf")))
        and quant.lower() in key.rpartition("/")[2].lower()
    ]
    if len(fitting) == 1:
        return Stored(path=files[fitting[0]], name=stem(files[fitting[0]]))
    if fitting:
        raise UserError(
            f"LM Studio has {len(fitting)} files of {name}: add the type of one, as in lmstudio:{wanted}:Q4_K_M, of "
            f"{', '.join(each.rpartition('/')[2] for each in fitting[:8])}"
        )
    hint = nearest(name, files) or (f"there are: {', '.join(list(files)[:8])}" if files else "")
    where = ", ".join(map(str, folders)) or f"there is no such folder ({lm_studio_folders()[0]})"
    raise UserError(f"LM Studio has no model {name} here ({where}); {hint}".rstrip("; "))


def _is_later_part(path: Path) -> bool:
    found = PART.search(path.name)
    return found is not None and int(found[1]) != 1
