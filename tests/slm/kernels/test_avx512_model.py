"""The bf16 kernels can be built with the model of their instructions, on a processor that has them as well."""

import subprocess

import pytest

from slm.kernels.native import FOLDER, VARIANTS
from slm.machine.cpp_build import compiler
from tests.helpers.kernels import model_flags

BF16 = [name for name, variant in VARIANTS.items() if variant.precision == "bf16"]


@pytest.mark.skipif(VARIANTS["avx2"].unavailable() is not None, reason="the model needs AVX2 and g++")
@pytest.mark.parametrize("name", BF16)
def test_the_model_has_every_instruction_of_the_kernels(name):
    variant = VARIANTS[name]
    sources = [str(FOLDER / each) for each in variant.sources]
    command = [str(compiler(gcc_only=True)), "-fsyntax-only", *model_flags(variant), *sources]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
