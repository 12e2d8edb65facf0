"""The texts on which everybody is scored, as files of documents.

Tested in tests/train/bench_recipe/test_bench_recipe.py.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from slm.data.sources.documents import sample_documents
from slm.evaluate.text import read_text
from slm.train.bench_recipe.config import BenchRecipeConfig


def validation_documents(config: BenchRecipeConfig) -> tuple[str, list[str]]:
    """The name and the documents of the first text."""
    if config.bench.validation is not None:
        return config.bench.validation.name, documents_of(config.bench.validation)
    files = [Path(path) for path in config.data.val_files]
    if files and all(path.is_file() for path in files):
        return files[0].name, [document for path in files for document in documents_of(path)]
    found = sample_documents(config.data, "validation", config.bench.validation_bytes, config.train.seed)
    return "held-out text", found


def documents_of(path: Path) -> list[str]:
    """The documents of a Parquet or JSON Lines file; another file is one document."""
    text = read_text(path)
    return list(text.documents) or [text.content]


def write_documents(path: Path, documents: Sequence[str]) -> Path:
    """A JSON Lines file, for those that run in processes of their own."""
    lines = [json.dumps({"text": document}, ensure_ascii=False) for document in documents]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
