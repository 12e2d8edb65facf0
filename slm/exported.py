"""Exported files next to the run that they came from: whether they are older than its checkpoint, and whether
they still hold the bytes that the export wrote.

Loads neither torch nor llama.cpp, so that the server can use it.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

from slm import runs
from slm.cli import spelled
from slm.data.errors import UserError
from slm.llama.gguf_check import read_header

CONFIG_KEY = "slm.config"
"""The metadata key of what a file was made from, as JSON: run, checkpoint, configuration, shape."""
RECORD_FILE = "export.json"
"""Stands next to the exported files. ``sha256`` in it maps file names to hexadecimal digests."""
MODELFILE = "Modelfile"
"""Ollama's description of one of the exported files, for a chat model."""
_QUANT = re.compile(r"-((?:bf|f|i?q|tq|mxfp)\d+(?:_[a-z0-9]+)*)$", re.IGNORECASE)
_AUTO = re.compile(r"-(auto)(?:-(\d+(?:\.\d+)?)(bpw|[KMG]i?B|pct|nats|tps))?$")
_GOAL_UNITS = {"bpw": "", "pct": "%", "tps": "tok/s"}
_READ = 1 << 20


def stale_lines(paths: Iterable[Path]) -> list[str]:
    """A line for the files that came from an older checkpoint than their run would be exported from now, and how to
    renew them.

    Files of one run and checkpoint share a line. A file outside a run's ``gguf`` folder, or without a record of its
    checkpoint, is not judged.
    """
    found: dict[tuple[Path, int], list[Path]] = {}
    newest: dict[Path, int] = {}
    for path in paths:
        path = path.resolve()
        root = path.parent.parent
        checkpoints = runs.list_checkpoints(root) if path.parent == runs.Run(root=root).gguf_dir else []
        if not checkpoints:
            continue
        newest[root] = runs.checkpoint_step(checkpoints[-1])
        step = _step_of(path)
        chosen = runs.checkpoint_step(runs.Run(root=root).checkpoint())
        if step is not None and step < newest[root] and step != chosen:
            found.setdefault((root, step), []).append(path)
    return [_stale_line(root, step, newest[root], files) for (root, step), files in found.items()]


def _step_of(path: Path) -> int | None:
    """The step of the checkpoint that a file was made from; None where the file does not say."""
    try:
        record = json.loads(read_header(path).metadata[CONFIG_KEY])
        return runs.checkpoint_step(Path(record["checkpoint"]))
    except (UserError, KeyError, TypeError, ValueError):
        return None  # not ours, or damaged: opening it will say so


def _stale_line(root: Path, step: int, newest: int, files: list[Path]) -> str:
    names = ", ".join(dict.fromkeys(path.name for path in files))
    one = len({path.name for path in files}) == 1
    best = root / runs.BEST
    of_best = best.is_symlink() and re.fullmatch(r"step-0*" + str(step), Path(os.readlink(best)).name)
    return (
        f"note: {names} {'is' if one else 'are'} from step {step}{' (the best checkpoint)' if of_best else ''}, but "
        f"{shown(root)} has been trained to step {newest}; renew with: {export_command(root, files)}"
    )


def export_command(root: Path, files: Iterable[Path]) -> str:
    """The command that makes these files of a run again."""
    quants = [quant for path in files if (quant := quant_of(path))]
    return spelled("export", run=shown(root), **({"quant": ",".join(dict.fromkeys(quants))} if quants else {}))


def quant_of(path: Path) -> str | None:
    """What ``quant=`` made an exported file, by its name: ``q4_k_m``, ``auto:4.5``. None where the name is another."""
    if match := _AUTO.search(path.stem):
        goal, number, unit = match.groups()
        return f"{goal}:{number}{_GOAL_UNITS.get(unit, unit)}" if number else str(goal)
    match = _QUANT.search(path.stem)
    return match.group(1).lower() if match else None


def renewal(folder: Path, files: Iterable[Path]) -> str:
    """What to do about files of the folder that are not as they were exported."""
    root = folder.resolve().parent
    if folder.resolve() == runs.Run(root=root).gguf_dir and runs.list_checkpoints(root):
        return f"make it again with: {export_command(root, files)}"
    return "export or copy it again"


def shown(root: Path) -> str:
    """A path as a person would type it: relative inside the current folder."""
    relative = os.path.relpath(root)
    return str(root) if relative.startswith("..") else relative


def sha256(path: Path) -> str:
    """The file's digest, hexadecimal. Other threads run meanwhile."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(_READ):
            digest.update(chunk)
    return digest.hexdigest()


def recorded_sums(folder: Path) -> dict[str, str]:
    """SHA-256 by file name, from the export's record in the folder. Empty where there is none or it has no sums."""
    try:
        sums = json.loads((folder / RECORD_FILE).read_text(encoding="utf-8"))["sha256"]
        return {str(name): str(value) for name, value in sums.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def damage(path: Path, expected: str) -> str | None:
    """One line about a file that does not hold the bytes of its record; None for a good one."""
    renew = renewal(path.parent, [path])
    try:
        found = sha256(path)
    except FileNotFoundError:
        return f"{path} is missing; {renew}"
    except OSError as error:
        return f"{path} cannot be read ({error.strerror}); {renew}"
    if found == expected:
        return None
    return f"{path} is damaged: its SHA-256 is {found[:16]}..., {RECORD_FILE} says {expected[:16]}...; {renew}"
