"""The kernels under GCC's sanitizers: no byte beyond a tensor is touched, and no arithmetic is undefined.

Address sanitizer has to be in a process from its start, so these tests run in their own processes.
"""

import os
import re
import subprocess
import sys

import pytest

from slm.kernels import checked
from slm.kernels.native import VARIANTS
from slm.machine.cpp_build import compiler
from tests.helpers import REPOSITORY
from tests.helpers.kernels import NAMES, SANITIZE

pytestmark = [pytest.mark.slow, pytest.mark.skipif(compiler(gcc_only=True) is None, reason="no g++")]

BEYOND = """
import sys
import torch
from tests.helpers.kernels import kernels_for_test
kernels = kernels_for_test(sys.argv[1])
x, out = (torch.ones(4 * 32, dtype=kernels.dtype) for _ in range(2))
weight = torch.ones(32)
for rows in (4, 5):
    kernels.slm_rmsnorm(x, rows, 32, weight, 1e-5, out, None)
    print(rows, "rows", flush=True)
"""
"""A norm of four rows, then of one more than there are."""


EACH = "SLM_SANITIZE_EACH"
"""The environment's word for kernels of all instruction sets. Building one with the sanitizers takes a minute."""
PARTS = [
    name
    if name == "avx2" or (VARIANTS[name].precision == "bf16" and VARIANTS[name].unavailable() is None)
    else pytest.param(name, marks=pytest.mark.skipif(EACH not in os.environ, reason=f"{EACH}=1 tries all kernels"))
    for name in NAMES
]


def _library(gcc: str, name: str) -> str:
    command = [gcc, f"-print-file-name=lib{name}.so"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def watched(*command: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the sanitizers."""
    gcc = str(compiler(gcc_only=True))
    libraries = [_library(gcc, name) for name in ("asan", "ubsan")]
    if not all(os.path.isabs(each) for each in libraries):
        pytest.skip("this g++ has no sanitizers")
    environment = os.environ | {
        "LD_PRELOAD": ":".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python leaves much to the end of its process
        "UBSAN_OPTIONS": "print_stacktrace=1",
        SANITIZE: "1",
        checked.VARIABLE: "",  # the sanitizers find it here
        "OMP_NUM_THREADS": "2",
    }
    return subprocess.run(
        [sys.executable, *command], cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=600
    )


@pytest.mark.parametrize("name", PARTS)
def test_a_row_too_many_is_found(name):
    """The sanitizers are at work: what is wrong is seen."""
    done = watched("-c", BEYOND, name)
    assert done.stdout == "4 rows\n", done.stderr
    assert done.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in done.stderr
    assert "slm_rmsnorm" in done.stderr


@pytest.mark.parametrize("name", PARTS)
def test_losses_and_gradients_stay_within_their_memory(name):
    """Every shape of model, with one position and with some that fill no block; masks; a head in chunks."""
    ours = f"([{name}- or -{name}] or [{name}])"
    lengths = "(-1] or -33] or [" + name + "-grouped-257])"
    others = "documents_do_not_see_each_other or the_head_works_in_chunks"
    chosen = f"{ours} and ((loss_and_gradients_are_the_models and {lengths}) or {others})"
    plain = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist")
    done = watched("-m", "pytest", *plain, "tests/slm/kernels/test_fused.py", "-k", chosen)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None, done.stdout
    assert int(passed[1]) > 10
