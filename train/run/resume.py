"""Where a run begins: the checkpoint it resumes from, whether that belongs to the same run, and what comes after it."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from slm.configuration import build, to_dict
from slm.data.errors import UserError
from slm.model import checkpoint
from slm.removed_options import without_removed
from slm.runs import checkpoint_step, list_checkpoints
from slm.train.config import RESHARD, RunConfig, TrainConfig
from slm.train.environment import Environment
from slm.train.run.run_directory import back_up


@dataclass(frozen=True)
class ResumePoint:
    """Where a run begins: at a verified checkpoint, or (``checkpoint`` None) at its first step."""

    checkpoint: Path | None
    tensors: dict[str, Any]
    """Optimizer and random state by name, as the checkpoint holds them."""
    state: dict[str, Any]
    """The JSON part of the trainer's state."""


def find_resume_point(resume: str, root: Path, log: Callable[[str], None]) -> ResumePoint:
    """Where the run in ``root`` begins.

    ``resume``: ``auto`` or ``reshard`` (the newest intact checkpoint), ``never``, or a checkpoint's path or name.
    ``log`` is called with a line about every damaged checkpoint.
    """
    if resume == "never":
        return ResumePoint(None, {}, {})
    if resume not in ("auto", RESHARD):
        return _load(named_checkpoint(resume, root))
    return newest_intact(root, log)


def newest_intact(
    root: Path, log: Callable[[str], None], counts: Callable[[int], bool] = lambda step: True
) -> ResumePoint:
    """The newest intact checkpoint of a run, of those with a step that ``counts``.

    ``log`` is called with a line about every newer, damaged one.
    """
    candidates = [path for path in list_checkpoints(root) if counts(checkpoint_step(path))]
    for path in reversed(candidates):
        try:
            return _load(path)
        except UserError as error:
            log(f"warning: {error}; trying the one before")
    if candidates:
        raise UserError(f"every checkpoint in {root / 'checkpoints'} is damaged: start anew with resume=never")
    return ResumePoint(None, {}, {})


def named_checkpoint(resume: str, root: Path) -> Path:
    """The checkpoint's directory; one of this run as the run itself names it, however a link or a path spells it."""
    path = Path(resume)
    for candidate in (path, root / "checkpoints" / resume):
        if (candidate / "config.json").is_file():
            own = root / "checkpoints" / candidate.resolve().name
            return own if own.exists() and own.samefile(candidate) else candidate
    have = ", ".join(p.name for p in list_checkpoints(root)) or "none"
    raise UserError(
        f"resume={resume} is neither auto, reshard, never nor a checkpoint directory (checkpoints of {root}: {have})"
    )


def _load(path: Path) -> ResumePoint:
    checkpoint.verify(path)
    tensors, state = checkpoint.load_trainer_state(path)
    return ResumePoint(path, tensors, state)


def back_up_later_checkpoints(root: Path, start: Path, step: int) -> list[str]:
    """Rename the run's checkpoints after ``step``, since it continues from ``start``, the checkpoint of that step. If
    ``start`` lies elsewhere, the run's own checkpoint of that step is renamed, too. Returns their former names."""
    renamed = []
    for path in list_checkpoints(root):
        if path != start and checkpoint_step(path) >= step:
            back_up(path)
            renamed.append(path.name)
    return renamed


ROLLED_BACK = ".rolled-back"
"""The end of a checkpoint's name when a rollback has made it invalid; it is removed when the run has passed it."""


def set_aside_rolled_back(root: Path, start: Path) -> None:
    """Rename the checkpoints newer than ``start``, to which the run rolls back. No start resumes from them."""
    for path in list_checkpoints(root):
        if path.name > start.name:
            aside = path.with_name(path.name + ROLLED_BACK)
            if aside.exists():
                checkpoint.remove(aside)
            os.rename(path, aside)


def remove_rolled_back(root: Path) -> None:
    """Remove what rollbacks renamed up to the step of the newest checkpoint, which takes its place."""
    newest = list_checkpoints(root)[-1:]
    for path in (root / "checkpoints").glob(f"step-*{ROLLED_BACK}"):
        if newest and path.name.removesuffix(ROLLED_BACK) <= newest[0].name:
            checkpoint.remove(path)


FIXED_SECTIONS = ("model", "tokenizer", "data", "lora", "preference", "distill", "components")
FIXED_KEYS = (
    "init_from",
    "train.seq_len",
    "train.pack_tokens",
    "train.seed",
    "train.workers",
    "train.mask_documents",
    "optim.name",
)
FREE_KEYS = (
    *("data.cache", "data.cache_dir", "data.revision", "data.files", "data.val_files", "data.on_bad"),
    "components.quantization",
)
"""Keys of the fixed sections that may change: where text is kept, not what it is (the loader compares the commit and
the files' contents), whether a record that cannot be read ends the run, and when quantization begins."""
FREE_OF_SOURCES = ("files", "val_files", "on_bad")


def check_unchanged(saved: dict[str, Any], config: RunConfig, root: Path) -> None:
    """Refuse to resume where options that define the run differ from the ``saved`` ones, field by field.

    A longer schedule, another learning rate, more checkpoints, another logger and the like may change; so may
    train.micro_batch and train.grad_accum where their product, the sequences of a step, stays.
    """
    saved, current = _with_defaults(without_removed(saved)), to_dict(config)
    if config.data.prepared:  # a corpus may be moved, and its tokenizer goes with it: the loader compares both
        saved, current = ({**each, "tokenizer": None} for each in (saved, current))
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


def _value(tree: Any, key: str) -> Any:
    for name in key.split("."):
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


def _differences(old: Any, new: Any, where: str) -> list[str]:
    if where in FREE_KEYS:
        return []
    if where == "data.sources" and isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        old, new = ([{k: v for k, v in each.items() if k not in FREE_OF_SOURCES} for each in all] for all in (old, new))
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted(set(old) | set(new))
        return [line for key in keys for line in _differences(old.get(key), new.get(key), f"{where}.{key}")]
    return [] if old == new else [f"{where} was {old!r}, now {new!r}"]


def rounding(environment: Environment, config: TrainConfig) -> dict[str, Any]:
    """What decides how sums are rounded: where all of it is the same, a resumed run is the same to the bit."""
    facts: dict[str, Any] = {"torch": torch.__version__, "cpu": torch.backends.cpu.get_cpu_capability()}
    facts |= {"threads": environment.threads, "precision": environment.precision, "compile": environment.compile}
    facts["kernels"] = environment.kernels.name if environment.kernels else False
    return facts | {"micro_batch": config.micro_batch, "gradient_checkpointing": config.gradient_checkpointing}


def rounding_changes(saved: dict[str, Any], current: dict[str, Any]) -> str | None:
    """A line on what makes a resumed run differ in its last bits, or None."""
    changed = [f"{key} was {saved[key]}, is {now}" for key, now in current.items() if saved.get(key, now) != now]
    return f"{', '.join(changed)}: the run goes on, but not bit for bit" if changed else None
