"""A small base model that the runs of this folder start from."""

from pathlib import Path

import pytest

from tests.helpers.small_run import SmallRun, write_corpus


@pytest.fixture(scope="package")
def base(tmp_path_factory) -> Path:
    """The directory of a run of a few steps; its text is ``documents.jsonl`` in the folder above the runs."""
    folder = tmp_path_factory.mktemp("base")
    corpus = write_corpus(folder / "documents.jsonl")
    words = (f"data.files=[{corpus}]", "train.max_steps=10", "optim=adamw", "optim.lr=3e-3")
    return SmallRun(folder / "runs", "name=base", *words).finish().root
