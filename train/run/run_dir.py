"""The run's directory: whose it is, what a start finds in it, and what a new run puts there."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from data.errors import UserError
from data.sources.documents import sample_documents
from data.tokenizers.make import load_tokenizer, make_tokenizer
from data.tokenizers.tokenizer import Tokenizer
from slm.configuration import build, to_dict
from slm.files import atomic_write_text, fsync
from slm.model import checkpoint
from slm.runs import BEST, checkpoint_step, list_checkpoints
from train.config import RunConfig, TrainConfig
from train.environment import Environment

TEXT_BYTES = 1_000_000
"""How much held-out and training text a run keeps beside it, for export's calibration and proof."""


@dataclass(frozen=True)
class Start:
    """Where a run begins: at nothing, or at a verified checkpoint."""

    checkpoint: Path | None
    tensors: dict[str, Any]
    state: dict[str, Any]


def set_aside(root: Path) -> Path | None:
    """Rename what ``root`` holds to the first free ``<name>.<n>``; None where there was nothing."""
    if not root.exists():
        return None
    n = 1
    while (kept := root.with_name(f"{root.name}.{n}")).exists():
        n += 1
    os.rename(root, kept)
    return kept


def find_start(resume: str, root: Path, say: Any) -> Start:
    """Where the run in ``root`` begins. ``resume``: ``auto`` (newest undamaged checkpoint), ``never``, or a path."""
    if resume == "never":
        return Start(None, {}, {})
    if resume != "auto":
        return _load(_named(resume, root))
    return newest_good(root, say)


def newest_good(root: Path, say: Any) -> Start:
    """The newest undamaged checkpoint of a run, every damaged one on the way named; none where there is none yet."""
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


def write_config(config: RunConfig, root: Path) -> None:
    """The configuration as ``config.yaml``, every default included."""
    from omegaconf import OmegaConf

    atomic_write_text(root / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(to_dict(config))))


FIXED_SECTIONS = ("model", "tokenizer", "data")
FIXED_KEYS = ("init_from", "train.seq_len", "train.seed", "train.workers", "train.mask_documents", "optim.name")
FREE_KEYS = ("data.cache", "data.cache_dir", "data.revision")
"""Of the fixed sections: where text is kept, not what it is (the loader compares the commit itself)."""


def check_same(saved: dict[str, Any], config: RunConfig, root: Path) -> None:
    """Refuse to resume where what makes the run what it is has changed since ``saved``, field by field.

    A longer schedule, another learning rate, more checkpoints, another logger and the like may change; so may
    train.micro_batch and train.grad_accum where their product, the sequences of a step, stays.
    """
    saved, current = _with_defaults(saved), to_dict(config)
    differences = []
    for key in (*FIXED_SECTIONS, *FIXED_KEYS):
        differences += _differences(_value(saved, key), _value(current, key), key)
    old, new = ([_value(tree, f"train.{name}") for name in ("micro_batch", "grad_accum")] for tree in (saved, current))
    if None not in (*old, *new) and old[0] * old[1] != new[0] * new[1]:
        differences.append(
            f"train.micro_batch x train.grad_accum was {old[0]} x {old[1]}, now {new[0]} x {new[1]} (their product "
            "must stay)"
        )
    if differences:
        raise UserError(
            f"{root} was started with other settings: {'; '.join(differences)}. Give the same ones, "
            "another name=, or resume=never (the old run is kept aside)"
        )


def _with_defaults(config: dict[str, Any]) -> dict[str, Any]:
    """``config`` with the defaults of options that did not exist when it was saved."""
    try:
        return to_dict(build(RunConfig, config))
    except UserError:  # saved by a version with other options: compared as it is
        return config


def _value(tree: dict[str, Any], key: str) -> Any:
    for name in key.split("."):
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


def _differences(old: Any, new: Any, where: str) -> list[str]:
    if where in FREE_KEYS:
        return []
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted(set(old) | set(new))
        return [line for key in keys for line in _differences(old.get(key), new.get(key), f"{where}.{key}")]
    return [] if old == new else [f"{where} was {old!r}, now {new!r}"]


def rounding(environment: Environment, config: TrainConfig) -> dict[str, Any]:
    """What decides how sums are rounded: where all of it is the same, a resumed run is the same to the bit."""
    facts = {"torch": torch.__version__, "cpu": torch.backends.cpu.get_cpu_capability()}
    facts |= {"threads": environment.threads, "precision": environment.precision, "compile": environment.compile}
    facts["kernels"] = environment.kernels is not None
    return facts | {"micro_batch": config.micro_batch, "gradient_checkpointing": config.gradient_checkpointing}


def rounding_changes(saved: dict[str, Any], current: dict[str, Any]) -> str | None:
    """A line on what makes a resumed run differ in its last bits, or None."""
    changed = [f"{key} was {saved[key]}, is {now}" for key, now in current.items() if saved.get(key, now) != now]
    return f"{', '.join(changed)}: the run goes on, but not bit for bit" if changed else None


def sweep(root: Path) -> None:
    """Delete what killed writers left half-written; only for whoever holds the run's lock."""
    checkpoint.sweep(root / "checkpoints")
    for pattern in (".tokenizer.*", ".*.tmp", f".{BEST}.*"):
        for path in root.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


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
    for path in (*temporary.iterdir(), temporary):
        fsync(path)
    os.replace(temporary, folder)
    return tokenizer


def keep_texts(config: RunConfig, root: Path) -> None:
    """Write ``validation.txt`` and ``calibration.txt`` once: what export measures with, without the data's source."""
    for name, split in (("validation.txt", "validation"), ("calibration.txt", "train")):
        if not (root / name).exists():
            documents = sample_documents(config.data, split, TEXT_BYTES, config.train.seed)
            atomic_write_text(root / name, "\n\n".join(documents))
