"""A model in a run's directory besides its checkpoints: there as a whole or not at all.

Tested in tests/train/lora/test_lora_run.py.
"""

import os
import shutil
from pathlib import Path

from slm.data.storage import fsync
from slm.data.tokenizers.tokenizer import Tokenizer
from slm.model import checkpoint
from slm.model.transformer import LanguageModel


def keep_model(folder: Path, model: LanguageModel, tokenizer: Tokenizer) -> None:
    """Write ``model`` with its tokenizer into ``folder``, which must not exist."""
    temporary = folder.parent / f".{folder.name}.{os.getpid()}.tmp"
    temporary.mkdir()
    checkpoint.save_model(temporary, model)
    tokenizer.save(temporary)
    for path in (*temporary.iterdir(), temporary):
        fsync(path)
    os.replace(temporary, folder)


def remove_model(folder: Path) -> None:
    """Remove what a start that ended before its next checkpoint left, if anything."""
    if folder.is_dir():
        doomed = folder.parent / f".{folder.name}.old.{os.getpid()}.tmp"
        os.rename(folder, doomed)
        shutil.rmtree(doomed, ignore_errors=True)
