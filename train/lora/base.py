"""The model that an adapter belongs to, and what a run trains of a model.

An adapter fits one base. Where the conversations' chat template adds special tokens to the tokenizer, no other
directory holds such a base, and none where the base is held in blocks: the run keeps it in its folder ``base``, as a
Hugging Face model directory.

Tested in tests/train/lora/test_lora_run.py.
"""

import os
import shutil
from pathlib import Path

from slm.data.storage import fsync
from slm.data.tokenizers.make import load_tokenizer
from slm.data.tokenizers.tokenizer import Tokenizer
from slm.model import checkpoint
from slm.model.transformer import LanguageModel
from slm.train.config import LoraConfig, RunConfig
from slm.train.distributed.ranks import Ranks
from slm.train.lora.adapter import AdapterParameters
from slm.train.optim.interface import Trained


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


BASE = "base"
"""The folder of a run that holds the base of its adapter."""


def base_directory(config: RunConfig, root: Path) -> str | None:
    """The model directory that a run begins from; None for a new model."""
    kept = root / BASE
    return str(kept) if config.lora.rank and kept_base(root) else config.init_from


def kept_base(root: Path) -> bool:
    """Whether the run keeps the base of its adapter."""
    return (root / BASE).is_dir()


def new_ids(directory: str, tokenizer: Tokenizer) -> range:
    """The ids of ``tokenizer`` that the one in ``directory`` does not have."""
    return range(min(load_tokenizer(directory).vocab_size, tokenizer.vocab_size), tokenizer.vocab_size)


def keep_base(root: Path, model: LanguageModel, tokenizer: Tokenizer) -> None:
    """Write the base of a run's adapter into ``root``: it is there as a whole or not at all."""
    keep_model(root / BASE, model, tokenizer)


def remove_base(root: Path) -> None:
    """Remove what a start that ended before its first checkpoint left."""
    remove_model(root / BASE)


def make_trained(model: LanguageModel, config: RunConfig, root: Path, ranks: Ranks) -> Trained:
    """What the run trains of its model: everything, or an adapter, which begins the same on every rank."""
    if not config.lora.rank:
        return Trained(model)
    directory = base_directory(config, root) or ""
    where = Path(directory)
    adapter = AdapterParameters(model, config.lora, str(where.resolve()) if where.exists() else directory)
    ranks.broadcast(list(adapter.parameters()))
    return adapter


def adapter_line(trained: Trained, config: LoraConfig) -> str | None:
    """A line on what is trained where that is an adapter."""
    if not isinstance(trained, AdapterParameters):
        return None
    count = sum(each.numel() for each in trained.parameters())
    names = ", ".join(trained.targets)
    return f"LoRA: rank {config.rank}, alpha {config.alpha:g}: {count:,} parameters are trained, on {names}"
