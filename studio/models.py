"""Every model on this machine that studio was shown, as the cards of its first page."""

import functools
import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from slm import runs
from slm.data.errors import UserError
from slm.exported import MODELFILE, RECORD_FILE
from slm.llama.gguf_check import read_header
from slm.studio import run_files
from slm.studio.places import Places

DEEPEST = 5
"""Folders below a given one in which GGUF files are looked for."""
OWN = {"gguf", "checkpoints", "runs"}
"""Folders of ``models/`` with what exports and tunings made: their models have cards already."""


def models(places: Places) -> list[dict[str, Any]]:
    """A card each, the newest first: runs, then downloaded models and GGUF files of others."""
    found = [_card_of(places, root, _run, "run") for root in _run_folders(places.runs)]
    found += [_card_of(places, path, _directory, "model") for path in _model_directories(places.models)]
    for folder in (places.models, *places.folders):
        own = OWN if folder == places.models else {"checkpoints"}
        found += [_card_of(places, path, _gguf, "gguf") for path in _ggufs(folder, own)]
        found += [
            _card_of(places, path, functools.partial(_gguf, name=name), "gguf") for name, path in _of_ollama(folder)
        ]
    return sorted(found, key=lambda card: card["date"], reverse=True)


def _card_of(places: Places, path: Path, make: Callable[[Places, Path], dict[str, Any]], kind: str) -> dict[str, Any]:
    """The card of one model. What cannot be read, or has a name that is no text, has a card that says so."""
    try:
        os.fsencode(path).decode("utf-8")
        return make(places, path)
    except UnicodeDecodeError:
        fault = "its name is no UTF-8, so no command can take it: rename it"
    except OSError as error:  # no permission, or it was just removed
        fault = f"it cannot be read ({error.strerror})"
    return {**_card(kind, path.name, places.shown(path), 0, 0.0), "ggufs": [], "own": False, "fault": fault}


def _run_folders(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_symlink() or path.name.startswith(".") or not path.is_dir():
            continue
        # A folder that is closed to us shows only its name: its card says so.
        if (
            not os.access(path, os.R_OK | os.X_OK, effective_ids=True)
            or (path / runs.CONFIG).is_file()
            or (path / "checkpoints").is_dir()
        ):
            yield path


def _run(places: Places, root: Path) -> dict[str, Any]:
    run = runs.Run(root=root)
    found = run_files.summary(root)
    checkpoints = run.checkpoints()
    return {
        **found,
        "base": str(found["base"]).removeprefix(f"{places.root}/") if found["base"] else None,
        "files": [name for each in found["files"] if each for name in _file_names(places, str(each))],
        "path": places.shown(root),
        "name": root.name,
        "checkpoints": len(checkpoints),
        "ggufs": exported(places, run.gguf_dir),
        "modelfile": modelfile(places, run.gguf_dir),
        "types": types(root, checkpoints[-1] if checkpoints else root),
        "adapters": [places.shown(path) for path in run.adapters()],
        "report": (root / "report.html").is_file(),
        "ended": found["ended"],
        "not_continued": runs.why_not_continued(root),
        "bytes": size(root),
        "date": _changed(root / "metrics.jsonl", root),
        "own": True,
    }


def _file_names(places: Places, given: str) -> list[str]:
    """What a run's option ``data.files`` names; of an upload the files' own names."""
    path = places.root / given
    if not path.is_relative_to(places.uploads):
        return [given]
    return sorted(each.name for each in path.iterdir()) if path.is_dir() else ["files that are gone"]


def exported(places: Places, folder: Path) -> list[dict[str, Any]]:
    """The GGUF files of a run, with what their proof measured."""
    try:
        record = json.loads((folder / RECORD_FILE).read_text(encoding="utf-8"))
        rows = {row["file"]: row for row in record["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        rows = {}
    kept = ("type", "perplexity", "perplexity_change", "perplexity_change_stderr", "kl", "same_top", "bits_per_weight")
    return [
        {
            "path": places.shown(path),
            "name": path.name,
            "bytes": path.stat().st_size,
            **{key: rows.get(path.name, {}).get(key) for key in kept},
        }
        for path in runs.model_files(folder)
    ]


def types(root: Path, weights: Path) -> list[dict[str, Any]]:
    """The types that ``slm bench-quant`` has compared and timed since the ``weights`` were written: quality, size and
    speed on this machine."""
    path = root / "quantization" / "rows.json"
    try:
        if path.stat().st_mtime < weights.stat().st_mtime:
            return []
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
        return [
            {
                "type": label,
                "bytes": row["size_mib"] * 2**20,
                "change": row["perplexity_change"],
                "change_stderr": row["perplexity_change_stderr"],
                "same_top": row["same_top"],
                "tok_s": row["decode_tok_s"],
            }
            for label, row in rows.items()
            if row["decode_tok_s"] is not None
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []  # not compared yet, or by another version


def modelfile(places: Places, folder: Path) -> str | None:
    """Ollama's description of a run's file, where there is one."""
    path = folder / MODELFILE
    return places.shown(path) if path.is_file() else None


def _directory(places: Places, path: Path) -> dict[str, Any]:
    """A downloaded model in Hugging Face's form."""
    shown = places.shown(path)
    return {
        **_card("model", path.name, shown, size(path), _changed(path / "config.json", path)),
        "checkpoints": 1,
        "ggufs": exported(places, path / "gguf"),
        "types": types(path, path / "config.json"),
        "own": True,
    }


def _gguf(places: Places, path: Path, name: str | None = None) -> dict[str, Any]:
    shown, n_bytes = places.shown(path), path.stat().st_size
    about = _header(path, n_bytes, path.stat().st_mtime_ns)
    return {
        **_card("gguf", name or path.name, shown, n_bytes, path.stat().st_mtime),
        **about,
        "ggufs": [{"path": shown, "name": name or path.name, "bytes": n_bytes}],
        "own": path.is_relative_to(places.models),
    }


def _card(kind: str, name: str, path: str, n_bytes: int, date: float) -> dict[str, Any]:
    empty: dict[str, Any] = {
        "base": None,
        "files": [],
        "n_params": None,
        "bits_per_byte": None,
        "asked": [],
        "curve": [],
        "step": 0,
    }
    more = {"kind": kind, "name": name, "path": path, "bytes": n_bytes, "date": date, "checkpoints": 0, "adapters": []}
    return {**empty, **more, "report": False}


@functools.lru_cache(maxsize=512)
def _header(path: Path, *_stamp: int) -> dict[str, Any]:
    """What a GGUF file's header says; what is wrong with it where it cannot be read."""
    try:
        header = read_header(path)
    except (UserError, OSError) as error:
        return {"fault": str(error)}
    n_params = sum(math.prod(each.shape) for each in header.tensors)
    return {"n_params": n_params, "architecture": header.metadata.get("general.architecture")}


def _ggufs(folder: Path, left_out: set[str]) -> Iterator[Path]:
    """The models among the GGUF files below a folder, but not in hidden folders and those named in ``left_out``."""
    for root, folders, names in os.walk(folder):
        deep = len(Path(root).relative_to(folder).parts)
        folders[:] = [name for name in folders if name[0] != "." and deep < DEEPEST and name not in left_out]
        for name in sorted(names):
            path = Path(root, name)
            if name.endswith(".gguf") and not runs.is_no_model(name) and os.path.isfile(path):
                yield path


def _of_ollama(folder: Path) -> Iterator[tuple[str, Path]]:
    """The models of Ollama's folder by name: its manifests say which of its nameless files is the model."""
    for manifest in sorted((folder / "manifests").glob("*/*/*/*")):
        try:
            layers = json.loads(manifest.read_text(encoding="utf-8"))["layers"]
            digests = [each["digest"] for each in layers if each["mediaType"] == "application/vnd.ollama.image.model"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        for digest in digests:
            path = folder / "blobs" / str(digest).replace(":", "-")
            if os.path.isfile(path):
                yield f"{manifest.parent.name}:{manifest.name}", path


def _model_directories(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.glob("*/config.json")) + sorted(folder.glob("*/*/config.json")):
        yield path.parent


def _changed(*paths: Path) -> float:
    for path in paths:
        try:
            return path.stat().st_mtime
        except OSError:
            continue
    return 0.0


def size(folder: Path) -> int:
    """Bytes of all files below."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(root, name)).st_size
            except OSError:
                continue  # a save has just replaced it
    return total
