"""What GCC makes of the bf16 products: a tile and its operands stay in registers. No processor needs to have them.

Where too much is inlined into one function, GCC keeps operands of the inner loops in memory, and reads them again
before every product. Nothing fails then: attention took a third more time, unseen without these instructions.
"""

import re
import subprocess

import pytest

from slm.kernels.native import FOLDER, VARIANTS
from slm.machine.cpp_build import compiler
from tests.helpers import REPOSITORY

BF16 = VARIANTS["avx512bf16"]
FLAGS = ("-O3", "-fopenmp", "-w", "-S")
PROCESSOR = ("-march=znver3", *(f"-mavx512{each}" for each in ("f", "bw", "vl", "dq", "bf16")))
"""What GCC 12 takes Zen 4 and 5 for. Its choice of registers was bad there, and good for Intel's."""
PRODUCT = re.compile(r"\tvdpbf16ps\t")
RELOAD = re.compile(r"\tvmov\w+\t-?\d*\(%r[bs]p\), %zmm\d+")
BEFORE, MOST = 3, 0.005
"""Lines before a product in which it is looked for, and of how many of a file's products it may be."""


def reloads(assembly: str) -> tuple[int, int]:
    """How many products there are, and how many have a vector read from the stack right before them."""
    lines = assembly.splitlines()
    products = [index for index, line in enumerate(lines) if PRODUCT.search(line)]
    return len(products), sum(
        any(RELOAD.search(line) for line in lines[max(0, index - BEFORE) : index]) for index in products
    )


@pytest.mark.skipif(compiler(gcc_only=True) is None, reason="no g++")
@pytest.mark.parametrize(
    "source",
    ["linear.cpp", "weights.cpp", "attention.cpp", "attention_backward.cpp", "head.cpp"],
)
def test_operands_of_products_stay_in_registers(source, tmp_path):
    assert source in BF16.sources
    own = [flag for flag in BF16.flags if not flag.startswith("-march")]
    command = [
        str(compiler(gcc_only=True)),
        *FLAGS,
        *PROCESSOR,
        *own,
        str(FOLDER / source),
        "-o",
        str(tmp_path / "out.s"),
    ]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    if "-mavx512bf16" in done.stderr or "znver3" in done.stderr:
        pytest.skip("this g++ is not for x86-64, or too old")
    assert done.returncode == 0, done.stderr
    products, late = reloads((tmp_path / "out.s").read_text())
    assert products >= 32  # two tiles of eight rows and two columns
    assert late <= MOST * products


def test_a_reload_is_counted():
    kept = "\tvdpbf16ps\t%zmm1, %zmm2, %zmm3\n"
    assert reloads("\tvmovdqa64\t-2224(%rbp), %zmm25\n" + kept + kept + 3 * "\tnop\n" + kept) == (3, 2)
    assert reloads("\tvmovdqu64\t(%rdx), %zmm1\n" + kept) == (1, 0)
