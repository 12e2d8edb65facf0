"""What the kernels are built from, and where they can be.

Tested in tests/slm/kernels/test_library.py.
"""

import platform
from pathlib import Path

from slm.machine import cpp_build
from slm.machine.cpp_build import compiler, cpu_flags

SOURCES = ("linear.cpp", "attention.cpp", "attention_backward.cpp", "norms.cpp", "head.cpp", "sizes.cpp")
HEADERS = ("simd.h", "gemm.h", "attention.h", "sizes.h", "arena.h")
FLAGS = ("-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-std=c++17", "-w")
NEEDED = ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16")
"""Instruction sets, as /proc/cpuinfo spells them."""


def unavailable() -> str | None:
    """Why the kernels cannot be built or run here, or None where they can."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return "the training kernels are for Linux on x86-64"
    missing = [each for each in NEEDED if each not in cpu_flags()]
    if missing:
        return f"this processor has no {missing[-1]}"
    if compiler(gcc_only=True) is None:
        return "there is no g++ (install it with: apt install g++)"
    return None


def has_amx() -> bool:
    """Whether the processor has matrix tiles for bf16, several times the rate of AVX-512."""
    return "amx_bf16" in cpu_flags()


def build() -> Path:
    """The library's path; compiled where it is not there. RuntimeError with the compiler's message where that fails."""
    folder = Path(__file__).parent
    sources, headers = ([folder / name for name in names] for names in (SOURCES, HEADERS))
    return cpp_build.build(sources, FLAGS, headers=headers, what="the training kernels")
