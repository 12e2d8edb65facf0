"""The files of a run's directory: what a new run writes there, what is renamed to a backup, what is removed."""

import os
import shutil
from pathlib import Path

from data.sources.documents import sample_documents
from data.sources.plan import Split
from data.storage import atomic_write_text, fsync
from data.tokenizers.make import load_tokenizer, make_tokenizer
from data.tokenizers.tokenizer import Tokenizer
from slm.model import checkpoint
from slm.runs import BEST, list_checkpoints
from train.config import RunConfig

TOKENIZER = "tokenizer"
"""The folder of the run's tokenizer."""
TEXT_BYTES = 1_000_000
"""How much held-out and training text a run keeps, for export's calibration and its proof of equal numbers."""

TEXTS: dict[str, Split] = {"validation.txt": "validation", "calibration.txt": "train"}
"""The files of that text, and the split that each is taken from."""


def back_up(root: Path) -> Path | None:
    """Rename the directory ``root`` to the first free ``<name>.<n>``; None where there was none."""
    if not root.exists():
        return None
    n = 1
    while (backup := root.with_name(f"{root.name}.{n}")).exists():
        n += 1
    os.rename(root, backup)
    return backup


def back_up_later_checkpoints(root: Path, start: Path) -> list[str]:
    """Rename checkpoints newer than ``start``, since the run continues from there. Returns their former names."""
    renamed = []
    for path in list_checkpoints(root):
        if start.parent == path.parent and path.name > start.name:  # names have their steps in eight digits
            back_up(path)
            renamed.append(path.name)
    return renamed


def remove_partial_files(root: Path) -> None:
    """Delete what killed processes left half-written. Only for the process that holds the run's lock."""
    checkpoint.sweep(root / "checkpoints")
    for pattern in (f".{TOKENIZER}.*", ".*.tmp", f".{BEST}.*"):
        for path in root.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def prepare_text(config: RunConfig, root: Path, *, new: bool) -> Tokenizer:
    """The run's tokenizer. It and the text samples for export are in ``root`` afterwards.

    A run that resumes uses what is there. A ``new`` one makes everything from its own settings: what lies there was
    left by a start that ended before its first checkpoint, perhaps with other settings.
    """
    if new:
        _remove_text(root)
    tokenizer = _tokenizer(config, root)
    _write_text_samples(config, root)
    return tokenizer


def _remove_text(root: Path) -> None:
    for name in TEXTS:
        (root / name).unlink(missing_ok=True)
    if (root / TOKENIZER).exists():
        # Renamed first: a tokenizer is there as a whole or not at all.
        removed = root / f".{TOKENIZER}.old.{os.getpid()}"
        os.rename(root / TOKENIZER, removed)
        shutil.rmtree(removed, ignore_errors=True)


def _tokenizer(config: RunConfig, root: Path) -> Tokenizer:
    """The run's tokenizer: kept in ``tokenizer/``, made (or trained on the run's own text) the first time."""
    folder = root / TOKENIZER
    if (folder / "tokenizer.json").is_file():
        return load_tokenizer(folder)
    if config.init_from:
        tokenizer = load_tokenizer(config.init_from)
    else:
        tokenizer = make_tokenizer(
            config.tokenizer,
            lambda: iter(sample_documents(config.data, "train", config.tokenizer.sample_bytes, config.train.seed)),
        )
    temporary = root / f".{TOKENIZER}.{os.getpid()}"
    temporary.mkdir(exist_ok=True)
    tokenizer.save(temporary)
    for path in (*temporary.iterdir(), temporary):
        fsync(path)
    os.replace(temporary, folder)
    return tokenizer


def _write_text_samples(config: RunConfig, root: Path) -> None:
    """Write ``validation.txt`` and ``calibration.txt`` once: what export measures with, without the data's source."""
    for name, split in TEXTS.items():
        if not (root / name).exists():
            documents = sample_documents(config.data, split, TEXT_BYTES, config.train.seed)
            atomic_write_text(root / name, "\n\n".join(documents))
