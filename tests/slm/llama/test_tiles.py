"""llama.cpp computes what it did before, and lives, after others have used AMX's tiles in its threads."""

import subprocess
import sys

import pytest

from slm.llama import tiles
from tests.helpers import REPOSITORY

SCRIPT = """
import sys
from pathlib import Path

from slm.llama.quantize import quantize
from slm.llama.self_check import logits, write_model

n_threads, folder = int(sys.argv[1]), Path(sys.argv[2])
file = folder / "q4_0.gguf"
quantize(write_model(folder / "f32.gguf"), file, "q4_0", n_threads=1)
before = logits(file, n_threads)
import torch

torch.set_num_threads(n_threads)
square = torch.ones(512, 512, dtype=torch.bfloat16)
assert float((square @ square)[0, 0]) == 512
assert (logits(file, n_threads) == before).all()
"""


@pytest.mark.parametrize("n_threads", [1, 2])
def test_a_quantized_file_is_read_again_after_a_product_in_bf16(tmp_path, n_threads):
    command = [sys.executable, "-c", SCRIPT, str(n_threads), str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_without_tiles_nothing_is_kept(monkeypatch):
    monkeypatch.setattr(tiles, "build_features", lambda: ["AVX2"])
    tiles._library.cache_clear()
    try:
        tiles.keep(1)
        tiles.set_again(1)
        assert tiles._library() is None
    finally:
        tiles._library.cache_clear()
