"""A small corpus and a small model, so that a whole run takes seconds."""

import os
from pathlib import Path

import pytest

from tests.helpers.programs import Program
from tests.helpers.small_run import OPTIONS, SmallRun, write_corpus


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """A JSON Lines file of a few hundred short documents."""
    return write_corpus(tmp_path_factory.mktemp("corpus") / "documents.jsonl")


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """A folder for a test file's runs."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def words(request, corpus) -> list[str]:
    """The options that a test file gives its runs: ``WORDS``."""
    return [f"data.files=[{corpus}]", *request.module.WORDS]


@pytest.fixture(scope="module")
def whole(runs, words) -> SmallRun:
    """A run with these options from its beginning to its end."""
    return SmallRun(runs, "name=whole", *words).finish()


@pytest.fixture
def command(corpus, tmp_path):
    """The arguments of a small run whose directory is under ``tmp_path``."""

    def arguments(*overrides: str) -> list[str]:
        return [*OPTIONS, f"data.files=[{corpus}]", f"runs_dir={tmp_path}/runs", *overrides]

    return arguments


@pytest.fixture
def launch(tmp_path):
    """Start ``python -m slm.train`` and hand over the process; what still runs at the end of the test is killed."""
    started = []

    def run(arguments: list[str], unset: tuple[str, ...] = ()) -> Program:
        environment = {name: value for name, value in os.environ.items() if name not in unset}
        started.append(Program("slm.train", arguments, tmp_path, environment=environment))
        return started[-1]

    yield run
    for program in started:
        if program.poll() is None:
            program.kill()
            program.wait()


@pytest.fixture
def train(launch):
    """Run ``python -m slm.train`` with arguments to its end: (exit code, stdout, stderr)."""

    def run(arguments: list[str], unset: tuple[str, ...] = ()) -> tuple[int, str, str]:
        program = launch(arguments, unset)
        out, err = program.communicate(timeout=120)
        return program.returncode, out, err

    return run
