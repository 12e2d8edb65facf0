"""The self-check computes the same numbers with this machine's build in every type it tries."""

import json
import subprocess
import sys

import numpy as np
import pytest

from slm.llama import self_check
from slm.llama.gguf_check import read_header


def test_this_build_computes_every_type_right(tmp_path, repository):
    done = subprocess.run(
        [sys.executable, "-m", "slm.llama.self_check", str(tmp_path)],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    results = {line["type"]: line for line in lines if "type" in line}
    assert list(results) == ["f32", *self_check.TYPES]
    assert all(each["right"] for each in results.values()), results
    # The measured errors leave room for other kernels' rounding, and garbage is far above the tolerance.
    assert all(each["error"] < self_check.TOLERANCE[kind] / 2 for kind, each in results.items() if kind != "f32")
    for kind in self_check.TYPES:
        types = {tensor.type for tensor in read_header(tmp_path / f"{kind}.gguf").tensors}
        assert kind.removesuffix("_m") in types


@pytest.mark.parametrize(
    "damage",
    [
        lambda right: np.zeros_like(right),
        lambda right: np.full_like(right, 1.0),
        lambda right: right[:, ::-1],
        lambda right: right * 1.5,
        lambda right: np.where(np.arange(right.shape[1]) % 4 == 0, 0, right),  # every fourth result is missing
        lambda right: np.where(
            np.arange(len(right))[:, None] < self_check.N_PROMPT, right, -right
        ),  # single tokens only
        lambda right: np.where(right > 5, np.nan, right),
    ],
)
def test_garbage_is_above_every_tolerance(damage):
    right = np.random.default_rng(1).normal(0, 3, (self_check.N_PROMPT + self_check.N_SINGLE, 512)).astype(np.float32)
    assert self_check.worst_error(right, right) == 0
    assert self_check.worst_error(damage(right), right) > max(self_check.TOLERANCE.values())
