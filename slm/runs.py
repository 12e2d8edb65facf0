"""Run directories: ``runs/<name>/`` with its configuration, metrics, checkpoints and exported files.

A command's ``run=`` may name a run directory, one of its checkpoints, or a Hugging Face model directory from
elsewhere; ``resolve`` finds out which, and the ``Run`` that it returns knows where things are.
"""

import contextlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slm.callable import make_callable
from slm.cli import spelled
from slm.data.errors import UserError, excerpt, nearest
from slm.removed_options import without_removed

RUNS = Path("runs")
"""Where runs are, unless ``runs_dir`` says otherwise."""
CONFIG = "config.yaml"
CHECKPOINT_NAME = re.compile(r"step-(\d{8})")
VALIDATION, CALIBRATION = "validation.txt", "calibration.txt"
"""Samples of a run's held-out and training text, kept for the export."""
QUESTIONS = "questions.jsonl"
"""Conversations; the run's model is asked for their last answers. Held-out ones, where there are any."""
LATEST = "latest"
BEST = "best"
ADAPTER_END = "-LoRA.gguf"
"""How the name of an adapter's GGUF file ends, after GGUF's naming convention."""


@dataclass(frozen=True)
class Run:
    """A directory that holds a model: ours (``is_hf`` False), or a bare Hugging Face one."""

    root: Path
    is_hf: bool = False
    pinned: Path | None = None
    """The checkpoint that was named, where one was; otherwise ``checkpoint`` chooses."""

    @property
    def name(self) -> str:
        """The folder's name; for a model from the Hub, without the revision."""
        return self.root.name.partition("@")[0] if self.is_hf and self.pinned else self.root.name

    @property
    def gguf_dir(self) -> Path:
        return self.root / "gguf"

    @property
    def config_file(self) -> Path | None:
        return _if_file(self.root / CONFIG)

    @property
    def validation_text(self) -> Path | None:
        """Held-out documents, written by training, joined by blank lines."""
        return _if_file(self.root / VALIDATION)

    @property
    def calibration_text(self) -> Path | None:
        """Training documents, written by training, joined by blank lines."""
        return _if_file(self.root / CALIBRATION)

    def checkpoints(self) -> list[Path]:
        """Complete checkpoints, oldest first. A save that was cut off never has the final name."""
        if self.is_hf:
            return [self.root]
        return list_checkpoints(self.root)

    def checkpoint(self) -> Path:
        """The checkpoint to use: the one named, else the one with the lowest validation loss (a run that stopped early
        has newer, worse ones), else the newest, where that was not validated. UserError where there is none yet."""
        if self.pinned is not None:
            return self.pinned
        found = self.checkpoints()
        if not found:
            raise UserError(
                f"{self.root} holds no checkpoint yet: train it further "
                f"(`{spelled('train', name=self.name)}`) or name another run"
            )
        losses = {} if self.is_hf else _validation_losses(self.root)
        return min(losses, key=losses.__getitem__) if found[-1] in losses else found[-1]

    def choice_line(self) -> str | None:
        """A line where ``checkpoint`` is not the newest one, and nobody named it."""
        found = self.checkpoints()
        if self.pinned is not None or not found or (chosen := self.checkpoint()) == found[-1]:
            return None
        return (
            f"{chosen.name} of {self.name} is used: its validation loss is lower than that of the newest, "
            f"checkpoints/{found[-1].name}, which can be named, too"
        )

    def ggufs(self) -> list[Path]:
        """The exported models, by name; importance matrices and adapters, which are GGUF files too, left out."""
        return model_files(self.gguf_dir)

    def adapters(self) -> list[Path]:
        """The exported LoRA adapters, by name."""
        return sorted(self.gguf_dir.glob(f"*{ADAPTER_END}")) if self.gguf_dir.is_dir() else []


def model_files(folder: Path) -> list[Path]:
    """The models among the GGUF files of a folder, by name; of one that was split, the first part."""
    if not folder.is_dir():
        return []
    return [path for path in sorted(folder.glob("*.gguf")) if not is_no_model(path.name)]


def is_no_model(name: str) -> bool:
    """Whether a GGUF file is called as those are that hold no model, or not its beginning: importance matrices,
    adapters, projectors of images, and the later parts of a split model."""
    return _is_beside_a_model(name) or name.startswith("imatrix") or name.endswith(ADAPTER_END)


def is_adapter(path: Path) -> bool:
    """Whether a GGUF file is called as LoRA adapters are."""
    return path.name.endswith(ADAPTER_END)


def list_checkpoints(root: Path) -> list[Path]:
    """The ``checkpoints/step-########`` directories of a run, oldest first."""
    folder = root / "checkpoints"
    if not folder.is_dir():
        return []
    return sorted(
        path for path in folder.iterdir() if CHECKPOINT_NAME.fullmatch(path.name) and (path / "config.json").is_file()
    )


def checkpoint_step(path: Path) -> int:
    """The optimizer step in a checkpoint directory's name. ValueError for any other name."""
    match = CHECKPOINT_NAME.fullmatch(path.name)
    if match is None:
        raise ValueError(f"{path} is not named step-########")
    return int(match.group(1))


def best_checkpoint(root: Path) -> Path | None:
    """The checkpoint with the lowest validation loss of those that were validated at their own step; None: no such."""
    losses = _validation_losses(root)
    return min(losses, key=losses.__getitem__) if losses else None


def _validation_losses(root: Path) -> dict[Path, float]:
    """The validation losses of the checkpoints that were validated at their own step, oldest first.

    Where the newest one is quantized (``train.qat``) or has gone back towards its base (``components.interpolation``)
    the others are left out: they hold another model, with a lower loss. They are, too, where what is held out has told
    nothing of what was learned (``components.patience``).
    """
    losses: dict[Path, float] = {}
    kinds: dict[Path, Any] = {}
    for path in list_checkpoints(root):
        try:
            state = json.loads((path / "trainer_state.json").read_text(encoding="utf-8"))
            kinds[path] = [
                (state.get(part) or {}).get(fact, plain)
                for part, fact, plain in (
                    ("qat", "file_type", None),
                    ("interpolation", "share", 1),
                    ("patience", "last", False),
                )
            ]
            validation = state["validation"]
            if validation["step"] == checkpoint_step(path) and validation["val_loss"] is not None:
                losses[path] = float(validation["val_loss"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # not validated, or damaged
    kind = kinds[max(kinds)] if kinds else None
    return {path: loss for path, loss in losses.items() if kinds[path] == kind}


def saved_config(root: Path) -> dict[str, Any]:
    """The resolved options of the run in ``root``; empty where there are none (a model from elsewhere).

    Raises UserError for a file that is damaged.
    """
    import yaml

    path = root / CONFIG
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise _broken_config(path, excerpt(error)) from None
    if not isinstance(config, dict):
        raise _broken_config(path, "it holds no options")
    return without_removed(config)


def why_not_continued(root: Path) -> str | None:
    """Why the run in ``root`` cannot be trained further with its own options; None where it can."""
    try:
        found = saved_config(root)
    except UserError as error:
        return str(error)
    return None if found else f"{root} has no {CONFIG}, which holds the options of its training"


def continued_config(root: Path) -> dict[str, Any]:
    """The options with which the run in ``root`` is trained further. UserError where it cannot be."""
    if why := why_not_continued(root):
        raise UserError(f"{why}: it cannot be continued")
    return saved_config(root)


def _broken_config(path: Path, reason: str) -> UserError:
    return UserError(
        f"{path} cannot be read ({reason}): bring back the file as training wrote it; the same options are in "
        "trainer_state.json of each checkpoint, under config"
    )


def place(word: str | os.PathLike[str]) -> Path:
    """The path that ``word`` names. A run's name is enough: ``mine`` is ``runs/mine`` where no model is at ``mine``."""
    path = Path(os.path.expanduser(word))
    if path.is_absolute() or holds_model(path):
        return path
    named = RUNS / path
    return named if holds_model(named) or (named.is_dir() and not path.exists()) else path


def teacher_folder(root: Path) -> Path:
    """Where a run is that teaches the run in ``root`` and is trained before it (``distill.born_again``)."""
    return root.with_name(f"{root.name}-teacher")


def holds_model(path: Path) -> bool:
    """Whether there is a model, or a run that is to become one: a GGUF file, a run's folder or a model directory."""
    if path.is_file():
        return path.suffix == ".gguf"
    marks = ("config.json", CONFIG, "checkpoints", "gguf", "adapter_config.json", "export.json")
    return any((path / mark).exists() for mark in marks) or bool(model_files(path))


def resolve(path: str | os.PathLike[str]) -> Run:
    """What ``path`` names: a run, a checkpoint of a run, or a model directory from elsewhere.

    Raises UserError that says what is there instead, and which runs exist.
    """
    root = place(path)
    if not root.exists():
        raise UserError(_missing(root))
    if root.is_file() and root.suffix == ".gguf":
        raise UserError(
            f"{root} is a GGUF file, and a run or a checkpoint is needed here: give the run that it was made from "
            "(runs/<name>) or a Hugging Face model directory"
        )
    if root.is_file():
        raise UserError(f"{root} is a file; give a run directory (runs/<name>) or a Hugging Face model directory")
    typed, root = root, root.resolve()
    if CHECKPOINT_NAME.fullmatch(root.name) and root.parent.name == "checkpoints":
        return Run(root=root.parent.parent, pinned=root)
    if (root / "config.json").is_file():
        return Run(root=root, is_hf=True)
    if (root / CONFIG).is_file() or (root / "checkpoints").is_dir() or (root / "gguf").is_dir():
        return Run(root=root)
    if (cached := _of_the_cache(root)) is not None:
        return Run(root=cached, is_hf=True)
    if (root / "adapter_config.json").is_file():
        raise UserError(
            f"{root} is a LoRA adapter without its model: give the run that trained it (its checkpoints are the "
            "merged model), or merge the adapter into its base first (PEFT's merge_and_unload)"
        )
    if not any(root.iterdir()):
        raise UserError(f"{typed} is an empty folder; name a run or the folder of a Hugging Face model{_or_runs()}")
    if files := [each.name for each in sorted(root.glob("*.gguf")) if not _is_beside_a_model(each.name)]:
        rest = f" (and {len(files) - 1} more)" if len(files) > 1 else ""
        raise UserError(f"{typed} is a folder with {files[0]}{rest}: name the file, {typed / files[0]}")
    if inner := sorted(each.parent.name for each in root.glob("*/config.json")):
        raise UserError(f"{typed} holds a model in a folder further down: give {typed / inner[0]}")
    raise UserError(
        f"{typed} is neither a run (no config.yaml, no checkpoints/) nor a Hugging Face model directory "
        "(no config.json); give a run, or the folder that config.json and model.safetensors are in" + _or_runs()
    )


def _is_beside_a_model(name: str) -> bool:
    """Whether a GGUF file is a later part of a split one, or an image projector."""
    return "mmproj" in name.lower() or re.search(r"-(?!00001)\d{5}-of-\d{5}\.gguf$", name) is not None


def _of_the_cache(root: Path) -> Path | None:
    """The newest snapshot of a model where ``root`` is its folder in the Hub's cache (``models--org--name``)."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        snapshot = root / "snapshots" / (root / "refs" / "main").read_text(encoding="utf-8").strip()
        if (snapshot / "config.json").is_file():
            return snapshot
    return None


def _missing(root: Path) -> str:
    is_name = len(root.parts) == 1 and not root.is_absolute()
    parent = RUNS if is_name else root.parent
    siblings = []
    if parent.is_dir():
        folders = [each for each in parent.iterdir() if each.is_dir() and each.name[0] != "."]
        # Any folder's models are named; what is in runs/ is a run, also one that has just begun.
        siblings = sorted(each.name for each in folders if parent.name == RUNS.name or holds_model(each))
    if root.suffix == ".gguf":
        there = sorted(each.name for each in root.parent.glob("*.gguf")) if root.parent.is_dir() else []
        hint = nearest(root.name, there) or (f"there are: {', '.join(there[:8])}" if there else "")
        return f"{root} does not exist; {hint or 'name a GGUF file, a run or a model directory'}"
    if root.name == LATEST and not siblings:
        return f"there is no run yet ({root} does not exist); train one first: `{spelled('train', preset='tiny')}`"
    hint = nearest(root.name, siblings)
    if not hint and siblings:
        hint = f"there are: {', '.join(siblings[:8])}"
    runs = [] if is_name else _run_names()
    if not hint and runs:
        hint = f"runs here: {', '.join(runs[:8])}"
    hint = hint or f"train a run first: `{spelled('train', preset='tiny')}`"
    if is_name:
        return f"there is no run {root} in {RUNS}/ and no such folder here; {hint}"
    return f"{root} does not exist; {hint}"


def _or_runs() -> str:
    """The runs of the current folder as the end of a message."""
    names = _run_names()
    return f" (runs here: {', '.join(names[:8])})" if names else ""


def _run_names() -> list[str]:
    """The names of the runs in ``runs/`` of the current folder; empty where there is no such folder."""
    try:
        return sorted(each.name for each in RUNS.iterdir() if each.is_dir() and each.name[0] != ".")
    except OSError:
        return []


def point_latest(root: Path) -> None:
    """Make ``<runs>/latest`` a relative link to ``root``, replaced in one step."""
    _point(root.parent / LATEST, root.name)


def point_best(root: Path, path: Path) -> None:
    """Make ``<run>/best`` a relative link to its checkpoint ``path``, replaced in one step."""
    _point(root / BEST, f"{path.parent.name}/{path.name}")


def _point(link: Path, target: str) -> None:
    if link.is_dir() and not link.is_symlink():
        return  # somebody gave a directory of theirs this name: it stays
    if link.is_symlink() and os.readlink(link) == target:
        return
    temporary = link.with_name(f".{link.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target, target_is_directory=True)
    os.replace(temporary, link)


def _if_file(path: Path) -> Path | None:
    return path if path.is_file() else None


make_callable(__name__)  # ``slm.runs()``: see slm.api.runs
