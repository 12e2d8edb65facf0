"""Calls of the kernels are compared with what C will read and write; every build is free of warnings."""

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from slm.kernels.checked import ARGUMENTS, _read, checking, is_on
from slm.kernels.native import ALLOCATING, COMMON_FLAGS, FOLDER, SIGNATURES, SIZES, VARIANTS
from slm.machine.cpp_build import compiler

KERNELS = SimpleNamespace(dtype=torch.float32, values_per_unit=1, slm_cross_entropy_rows=lambda: 4)
ROWS, WIDTH = 3, 16
GOOD = {
    "slm_rmsnorm": (torch.ones(ROWS, WIDTH), ROWS, WIDTH, torch.ones(WIDTH), 1e-5, torch.ones(ROWS, WIDTH), None),
    "slm_pack_forward": (torch.ones(4, WIDTH), 4, WIDTH, torch.ones(8 * WIDTH), 1),
    "slm_bias_gradient": (torch.ones(ROWS, 32)[:, 16:], 32, ROWS, 16, torch.ones(16), 0),
    "slm_cross_entropy": (
        *(torch.ones(ROWS, 2), ROWS, 2, torch.ones(2 * WIDTH), WIDTH, 0.0, None, torch.ones(ROWS, dtype=torch.int64)),
        *(1.0, 1, torch.ones(ROWS, WIDTH), None, torch.ones(ROWS)),
    ),
}


def test_it_is_on_in_tests():
    assert is_on()


def test_every_kernel_that_takes_a_tensor_is_described():
    assert set(ARGUMENTS) == set(SIGNATURES) - set(SIZES)
    for name, text in ARGUMENTS.items():
        numbers, tensors = _read(text)
        assert len(numbers) + len(tensors) == len(SIGNATURES[name]), name
    assert set(ALLOCATING) < set(ARGUMENTS)


@pytest.mark.parametrize("name", GOOD)
def test_what_fits_is_let_through(name):
    checking(KERNELS, name)(*GOOD[name])


@pytest.mark.parametrize(
    ("name", "place", "value", "says"),
    [
        ("slm_rmsnorm", 0, torch.ones(ROWS, WIDTH, dtype=torch.bfloat16), "x holds torch.bfloat16, not torch.float32"),
        ("slm_rmsnorm", 0, torch.ones(WIDTH, ROWS).T, "x is not contiguous"),
        ("slm_rmsnorm", 0, torch.ones(ROWS - 1, WIDTH), "x has 32 values, and 48 are read or written"),
        ("slm_rmsnorm", 0, None, "x is null"),
        ("slm_rmsnorm", 3, 7, "weight is no tensor but 7"),
        ("slm_rmsnorm", 0, torch.ones(ROWS, WIDTH, device="meta"), "x is on meta"),
        ("slm_pack_forward", 3, torch.ones(4 * WIDTH), "out has 64 values, and 128 are"),
        ("slm_bias_gradient", 0, torch.ones(ROWS, 32)[:, 17:], "dy has 79 values, and 80 are"),
        ("slm_bias_gradient", 0, torch.ones(ROWS, 64)[:, ::2], "dy has columns that lie 2 values apart"),
        ("slm_cross_entropy", 7, torch.ones(ROWS, dtype=torch.int32), "targets holds torch.int32, not torch.int64"),
        ("slm_cross_entropy", 10, torch.ones(ROWS - 1, WIDTH), "logits has 32 values, and 48 are"),
        ("slm_cross_entropy", 11, torch.ones(ROWS - 1, WIDTH), "slopes has 32 values, and 48 are"),
    ],
)
def test_what_c_would_read_or_write_beyond_a_tensor_is_refused(name, place, value, says):
    arguments = [*GOOD[name]]
    arguments[place] = value
    with pytest.raises(ValueError, match=f"{name}: {says}"):
        checking(KERNELS, name)(*arguments)
    with pytest.raises(ValueError, match="arguments, not 2"):
        checking(KERNELS, name)(*arguments[:2])


@pytest.mark.skipif(compiler(gcc_only=True) is None, reason="no g++")
@pytest.mark.parametrize(
    ("name", "parts"),
    [
        *[("amx", ["linear", "attention", "attention_backward", "short_conv"]), ("amx", ["norms", "head", "sizes"])],
        *[("avx512bf16", ["linear"]), ("avx512int8", ["linear", "attention", "head", "update", "integer_gain"])],
        ("avx2int16", ["linear", "short_conv", "norms", "sizes"]),
    ],
)
def test_there_are_no_warnings(name, parts):
    variant = VARIANTS[name]
    if variant.unavailable() == "these kernels are for x86-64":
        pytest.skip("the flags exist on x86-64 only")
    assert {"-Wall", "-Wextra"} <= set(COMMON_FLAGS)
    assert "-w" not in COMMON_FLAGS
    # For a processor that has all of them; the sources say themselves what they use.
    flags = [each.replace("-march=native", "-march=sapphirerapids") for each in variant.flags]
    command = [str(compiler(gcc_only=True)), *flags, "-fopenmp", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    done = subprocess.run(
        [*command, *(str(FOLDER / each) for each in variant.sources if Path(each).stem in parts)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[:2000]
