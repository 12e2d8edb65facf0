"""The texts on which everybody is scored, as files of documents.

Tested in tests/train/bench_recipe/test_bench_recipe.py.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from slm.data.errors import UserError
from slm.data.sources.contents import unit_hash
from slm.data.sources.documents import iter_documents, sample_documents
from slm.evaluate.text import read_text
from slm.train.bench_recipe.config import BenchRecipeConfig

READ_PER_SECOND = 400_000
"""Bytes of text that no contender reads faster, in a second: of text without end no more is looked at."""


def validation_documents(config: BenchRecipeConfig) -> tuple[str, list[str]]:
    """The name and the documents of the first text."""
    if config.bench.validation is not None:
        return config.bench.validation.name, documents_of(config.bench.validation)
    files = [Path(path) for path in config.data.val_files]
    if files and all(path.is_file() for path in files):
        return files[0].name, [document for path in files for document in documents_of(path)]
    found = list(sample_documents(config.data, "validation", config.bench.validation_bytes, config.train.seed))
    return "held-out text", found


def documents_of(path: Path) -> list[str]:
    """The documents of a Parquet or JSON Lines file; another file is one document."""
    text = read_text(path)
    return list(text.documents) or [text.content]


def write_documents(path: Path, documents: Sequence[str]) -> Path:
    """A JSON Lines file, for those that run in their own processes."""
    lines = [json.dumps({"text": document}, ensure_ascii=False) for document in documents]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def check_unread(config: BenchRecipeConfig, texts: Sequence[tuple[str, list[str]]]) -> str:
    """UserError where a document that is scored is also trained on: who has read it is not compared by it.

    ``texts``: names and documents. Documents are compared by hashes. Returns a line on what was looked at.
    """
    scored = {unit_hash(document.strip()): name for name, documents in texts for document in documents}
    looked, size, most = 0, 0, 60 * config.minutes * READ_PER_SECOND
    found: dict[float, str] = {}
    for document in iter_documents(config.data, "train", config.train.seed):
        looked, size = looked + 1, size + len(document)
        hashed = unit_hash(document.strip())
        if hashed in scored:
            found.setdefault(hashed, document)
        if size >= most:
            break
    if found:
        hashed, first = next(iter(found.items()))
        raise UserError(
            f"{len(found):,} of the {len(scored):,} documents that are scored are in the training text, so the "
            f"comparison would not be fair (the first, of {scored[hashed]}: {first.strip()[:60]!r}): take them out of "
            "the training text (data.decontaminate=[FILE]), or score other text (bench.validation=FILE)"
        )
    return f"none of the {len(scored):,} scored documents is among {looked:,} of the training text"
