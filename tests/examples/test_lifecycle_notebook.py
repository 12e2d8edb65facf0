"""examples/lifecycle.ipynb: stored without results, and all its cells run in order, in small."""

import json
import os
import subprocess
import sys

import pytest
import yaml

from tests.helpers import REPOSITORY
from tests.helpers.example_pages import SMALL

NOTEBOOK = REPOSITORY / "examples" / "lifecycle.ipynb"


@pytest.fixture(scope="module")
def cells():
    notebook = json.loads(NOTEBOOK.read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    return notebook["cells"]


def test_it_is_stored_without_results(cells):
    assert len({cell["id"] for cell in cells}) == len(cells)
    for cell in cells:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


@pytest.mark.slow
def test_all_cells_run_in_order(cells, tmp_path):
    words = (word.split("=", 1) for word in SMALL["train"].split())
    train = {"preset": "tiny", "train.eval_every": 6, **{key: yaml.safe_load(value) for key, value in words}}
    small = f"""
RUN = {str(tmp_path / "runs" / "notebook")!r}
TRAIN = {train!r}
QUANT = ["f32", "q4_k_m"]
EVALUATE = {{"eval.max_tokens": 500}}
SERVE = {{"serve.threads": 1}}
"""
    parts = []
    for cell in cells:
        if cell["cell_type"] == "code":
            parts.append("".join(cell["source"]))
            if "parameters" in cell["metadata"].get("tags", []):
                parts.append(small)  # in place of the parameters, as papermill does
    assert parts.count(small) == 1
    # One namespace for all, as in a notebook; from another folder than slm's.
    program = tmp_path / "cells.py"
    program.write_text("namespace = {}\n" + "".join(f"exec({part!r}, namespace)\n" for part in parts))
    environment = os.environ | {"MPLBACKEND": "agg", "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "step 6" in done.stdout or "step 12" in done.stdout
    assert "Q4_K_M.gguf: perplexity changed by" in done.stdout
    assert done.stdout.rindex("Once upon a time") > done.stdout.rindex("bits per byte"), (
        "the server's answer comes last"
    )
