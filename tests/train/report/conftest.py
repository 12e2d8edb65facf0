"""Runs to compare, and the command that reports them."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers import REPOSITORY
from tests.helpers.run_files import training, validation, write_run


@pytest.fixture
def three_runs(tmp_path) -> list[Path]:
    """Three runs: two share a tokenizer and the validation text, one is of another kind."""
    for name, ids, text, lr, loss in (("a", "1", "v", "1", 2.0), ("b", "1", "v", "2", 1.0), ("c", "2", "w", "1", 3.0)):
        config = f"name: {name}\noptim: {{lr: {lr}}}\ntrain: {{max_steps: 4}}\nfacts: {{n: {name}}}\n"
        steps = [training(step, tokens_per_s=1000 * loss) for step in (1, 2)]
        run = write_run(tmp_path / name, [*steps, validation(2, loss)], config=config)
        (run.root / "tokenizer").mkdir()
        (run.root / "tokenizer" / "tokenizer.json").write_text(ids)
        (run.root / "validation.txt").write_text(text)
    return [tmp_path / name for name in "abc"]


@pytest.fixture(scope="session")
def report() -> Callable[..., str]:
    """``python -m train.report.html ARGUMENTS``: what it printed, or its error where ``status`` is not 0."""

    def run(*arguments: str, status: int = 0) -> str:
        command = [sys.executable, "-m", "train.report.html", *arguments]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout if status == 0 else done.stderr

    return run
