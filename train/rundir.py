"""The run's directory: whose it is, what a start finds in it, and what a new run puts there."""

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.errors import UserError
from data.sources import sample_documents
from data.tokenizer import Tokenizer, load_tokenizer, make_tokenizer
from slm import checkpoint
from slm.report import atomic_write_text
from slm.runs import checkpoint_step, list_checkpoints
from train.config import RunConfig

TEXT_BYTES = 1_000_000
"""How much held-out and training text a run keeps beside it, for export's calibration and proof."""


@dataclass(frozen=True)
class Start:
    """Where a run begins: at nothing, or at a verified checkpoint."""

    checkpoint: Path | None
    tensors: dict[str, Any]
    state: dict[str, Any]


class RunLock:
    """Held while a run's directory is written; the kernel lets go of it when the process ends, however it ends."""

    def __init__(self, root: Path) -> None:
        self._file = (root / ".lock").open("a+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(
                f"another process is training in {root}: wait for it, stop it, or give this run a name= of its own"
            ) from None


def set_aside(root: Path) -> Path | None:
    """Rename what ``root`` holds to the first free ``<name>.<n>``; None where there was nothing."""
    if not root.exists():
        return None
    n = 1
    while (kept := root.with_name(f"{root.name}.{n}")).exists():
        n += 1
    os.rename(root, kept)
    return kept


def find_start(config: RunConfig, root: Path, say: Any) -> Start:
    """The newest undamaged checkpoint (or the one that was named), or none for a new run."""
    if config.resume == "never":
        return Start(None, {}, {})
    if config.resume != "auto":
        return _load(_named(config.resume, root))
    candidates = list_checkpoints(root)
    for path in reversed(candidates):
        try:
            return _load(path)
        except UserError as error:
            say(f"warning: {error}; trying the one before")
    if candidates:
        raise UserError(f"every checkpoint in {root / 'checkpoints'} is damaged: start anew with resume=never")
    return Start(None, {}, {})


def _named(resume: str, root: Path) -> Path:
    path = Path(resume)
    for candidate in (path, root / "checkpoints" / resume):
        if (candidate / "config.json").is_file():
            return candidate
    have = ", ".join(p.name for p in list_checkpoints(root)) or "none"
    raise UserError(
        f"resume={resume} is neither auto, never nor a checkpoint directory (checkpoints of {root}: {have})"
    )


def _load(path: Path) -> Start:
    checkpoint.verify(path)
    tensors, state = checkpoint.load_trainer_state(path)
    return Start(path, tensors, state)


def set_aside_later(root: Path, start: Path) -> list[str]:
    """Rename checkpoints newer than ``start``: the run is about to take another way from there."""
    renamed = []
    for path in list_checkpoints(root):
        if start.parent == path.parent and checkpoint_step(path) > checkpoint_step(start):
            set_aside(path)
            renamed.append(path.name)
    return renamed


FIXED_SECTIONS = ("model", "tokenizer", "data")
FIXED_KEYS = ("train.seq_len", "train.micro_batch", "train.grad_accum", "train.seed", "train.workers", "optim.name")


def check_same(saved: dict[str, Any], current: dict[str, Any], root: Path) -> None:
    """Refuse to resume where what makes the run what it is has changed, field by field.

    A longer schedule, another learning rate, another logger and the like may change.
    """
    differences = []
    for section in FIXED_SECTIONS:
        differences += _differences(saved.get(section, {}), current.get(section, {}), section)
    for key in FIXED_KEYS:
        section, name = key.split(".")
        differences += _differences(saved.get(section, {}).get(name), current.get(section, {}).get(name), key)
    if differences:
        raise UserError(
            f"{root} was started with other settings: {'; '.join(differences)}. Give the same ones, "
            "another name=, or resume=never (the old run is kept aside)"
        )


def _differences(old: Any, new: Any, where: str) -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted(set(old) | set(new))
        return [line for key in keys for line in _differences(old.get(key), new.get(key), f"{where}.{key}")]
    return [] if old == new else [f"{where} was {old!r}, now {new!r}"]


def run_tokenizer(config: RunConfig, root: Path) -> Tokenizer:
    """The run's tokenizer: kept in ``tokenizer/``, made (or trained on the run's own text) the first time."""
    folder = root / "tokenizer"
    if (folder / "tokenizer.json").is_file():
        return load_tokenizer(folder)
    if config.init_from:
        tokenizer = load_tokenizer(config.init_from)
    else:
        tokenizer = make_tokenizer(
            config.tokenizer,
            lambda: iter(sample_documents(config.data, "train", config.tokenizer.sample_bytes, config.train.seed)),
        )
    temporary = root / f".tokenizer.{os.getpid()}"
    temporary.mkdir(exist_ok=True)
    tokenizer.save(temporary)
    os.replace(temporary, folder)
    return tokenizer


def keep_texts(config: RunConfig, root: Path) -> None:
    """Write ``validation.txt`` and ``calibration.txt`` once: what export measures with, without the data's source."""
    for name, split in (("validation.txt", "validation"), ("calibration.txt", "train")):
        if not (root / name).exists():
            documents = sample_documents(config.data, split, TEXT_BYTES, config.train.seed)
            atomic_write_text(root / name, "\n\n".join(documents))
