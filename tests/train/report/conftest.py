"""Runs to compare, and the command that reports them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers import programs
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
def report(tmp_path_factory) -> Callable[..., str]:
    """``python -m slm.train.report.html ARGUMENTS``: what it printed, or its error where ``status`` is not 0."""
    folder = tmp_path_factory.mktemp("output")
    return lambda *arguments, status=0: programs.run("slm.train.report.html", list(arguments), folder, status=status)
