"""Every stage takes a run whose path has blanks, quotes and commas, through the command ``slm``."""

import json
import os

import pytest

from tests.helpers import REPOSITORY, programs
from tests.helpers.small_run import OPTIONS, write_corpus

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("it's a, b")


def slm(folder, *words: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "PYTHONSAFEPATH": "1"}
    return programs.run("slm", list(words), folder, cwd=folder, environment=environment)


@pytest.fixture(scope="module")
def run(folder):
    write_corpus(folder / "my text.jsonl")
    words = (*OPTIONS, "runs_dir=my runs", "name=x y", "data.files=[my text.jsonl]", "train.max_steps=3")
    out = slm(folder, "train", *words)
    assert "MODEL='my runs/x y'" in out  # the next command, as a shell takes it
    (folder / "my runs/x y").rename(folder / "my runs/x, (y)'s")
    return "my runs/x, (y)'s"


def test_all_stages_take_it(folder, run):
    exported = slm(folder, "export", f"run={run}", "quant=q8_0", "calibration.chunks=1", "proof.chunks=1")
    assert json.loads(exported.splitlines()[-1])["published"]
    assert "as exported" in slm(folder, "verify", f"run={run}")
    scored = slm(folder, "eval", f"run={run}", f"eval.text='{run.replace(chr(39), chr(92) + chr(39))}/validation.txt'")
    assert len(json.loads(scored.splitlines()[-1])) == 4
    assert "tokens/s" in slm(folder, "chat", f"model={run}", "prompt=the cat", "max_tokens=4")
    assert "report.html" in slm(folder, "report", f"runs=['{run}']")
    assert "step 3" in slm(folder, "watch", f"run={run}", "watch.once=true")
