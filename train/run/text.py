"""The tokenizer and the samples of text that a run keeps in its directory, made once.

Tested in tests/train/test_main.py, tests/train/test_resume.py.
"""

import os
import shutil
from pathlib import Path

from slm.data.errors import UserError
from slm.data.sources.documents import sample_documents
from slm.data.sources.plan import Split
from slm.data.storage import atomic_write_text, fsync
from slm.data.stream.chat_setup import chat_setup
from slm.data.tokenizers.make import load_tokenizer, make_tokenizer
from slm.data.tokenizers.tokenizer import Tokenizer
from slm.model import checkpoint, resize
from slm.runs import CALIBRATION, VALIDATION
from slm.train.config import RunConfig
from slm.train.run.run_directory import TOKENIZER
from slm.vocabulary.exportable import require_exportable

REFUSED = "Take another base or tokenizer"

TEXT_BYTES = 1_000_000
"""How much held-out and training text a run keeps, for export's calibration and its proof of equal numbers."""
TEXTS: dict[str, Split] = {VALIDATION: "validation", CALIBRATION: "train"}
"""The files of that text, and the split that each is taken from."""


def prepare_text(config: RunConfig, root: Path) -> Tokenizer:
    """The run's tokenizer. What is missing in ``root`` of it and of the text samples for export is made."""
    tokenizer = _tokenizer(config, root)
    for name, split in TEXTS.items():
        if not (root / name).exists():
            documents = sample_documents(config.data, split, TEXT_BYTES, config.train.seed, TEXT_BYTES // 16)
            atomic_write_text(root / name, "\n\n".join(documents))
    return tokenizer


def remove_text(root: Path) -> None:
    """Remove the run's tokenizer and its samples of text from ``root``, where they are there."""
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
            lambda: sample_documents(config.data, "train", config.tokenizer.sample_bytes, config.train.seed),
        )
    if config.data.has_chat:
        tokenizer, lines = chat_setup(tokenizer, config.data)
        for line in lines:
            print(line, flush=True)
    check_exportable(config, tokenizer)
    temporary = root / f".{TOKENIZER}.{os.getpid()}"
    temporary.mkdir(exist_ok=True)
    tokenizer.save(temporary)
    for path in (*temporary.iterdir(), temporary):
        fsync(path)
    os.replace(temporary, folder)
    return tokenizer


def check_exportable(config: RunConfig, tokenizer: Tokenizer) -> None:
    """``UserError`` where export would refuse a new run's shape, tokenizer or chat template, those from elsewhere."""
    if not (config.init_from or config.tokenizer.kind in ("file", "sentencepiece", "unigram")):
        return
    rows = -(-tokenizer.vocab_size // resize.MULTIPLE) * resize.MULTIPLE
    ids: dict[str, int | None] = {}
    if config.init_from:
        shape = checkpoint.load_config(config.init_from)
        try:
            shape.check_runs_in_llama_cpp()
        except UserError as error:
            raise UserError(f"export would refuse this model after its training: {error}. {REFUSED}") from error
        eos_id = tokenizer.eot_id if config.data.has_chat else shape.eos_id
        rows = max(rows, shape.vocab_size) if config.data.has_chat else shape.vocab_size
        ids = {"bos_token_id": shape.bos_id, "eos_token_id": eos_id}
    require_exportable(tokenizer, rows=rows, ids=ids, name=config.root.name, otherwise=REFUSED)
