"""The builds of the training kernels: one per instruction set, and where each can run.

Tested in tests/slm/kernels/test_library.py.
"""

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from slm.machine import cpp_build
from slm.machine.cpp_build import compiler, cpu_flags

FOLDER = Path(__file__).parent
COMMON_FLAGS = ("-O3", "-fopenmp", "-shared", "-fPIC", "-w")
Precision = Literal["bf16", "f32"]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """The kernels for one instruction set."""

    name: str
    """As ``train.kernels`` names it."""
    title: str
    """As messages name it."""
    precision: Precision
    """The number format of activations."""
    needs: tuple[str, ...]
    """Instruction sets, as /proc/cpuinfo spells them."""
    sources: tuple[str, ...]
    headers: tuple[str, ...]
    flags: tuple[str, ...]

    def unavailable(self) -> str | None:
        """Why these kernels cannot be built or run here, or None where they can."""
        if platform.system() != "Linux" or platform.machine() != "x86_64":
            return "the training kernels are for Linux on x86-64"
        missing = [each for each in self.needs if each not in cpu_flags()]
        if missing:
            return f"this processor has no {missing[-1]}"
        if compiler(gcc_only=True) is None:
            return "there is no g++ (install it with: apt install g++)"
        return None

    def build(self) -> Path:
        """The library's path, compiled if need be. RuntimeError with the compiler's message where that fails."""
        sources, headers = ([FOLDER / name for name in names] for names in (self.sources, self.headers))
        return cpp_build.build(sources, (*COMMON_FLAGS, *self.flags), headers=headers, what="the training kernels")


def _f32(name: str, title: str, needs: tuple[str, ...], *, march: str, lanes: int) -> Variant:
    """The f32 kernels with vectors of ``lanes`` values."""
    return Variant(
        name=name,
        title=title,
        precision="f32",
        needs=needs,
        sources=tuple(f"f32/{each}.cpp" for each in ("linear", "attention", "norms", "head", "sizes")),
        headers=("f32/vec.h", "f32/gemm.h", "f32/sizes.h", "arena.h"),
        flags=(f"-march={march}", "-mtune=native", f"-DSLM_LANES={lanes}", "-std=gnu++17", "-ffp-contract=fast"),
    )


_BF16 = Variant(
    name="avx512bf16",
    title="AVX512-BF16",
    precision="bf16",
    needs=("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16"),
    sources=("linear.cpp", "attention.cpp", "attention_backward.cpp", "norms.cpp", "head.cpp", "sizes.cpp"),
    headers=("simd.h", "gemm.h", "attention.h", "sizes.h", "arena.h"),
    flags=("-march=native", "-std=c++17"),
)
_AVX512 = ("avx512f", "avx512bw", "avx512vl", "avx512dq")
VARIANTS: dict[str, Variant] = {
    each.name: each
    for each in (
        _BF16,
        _f32("avx512", "AVX-512 (f32)", _AVX512, march="x86-64-v4", lanes=16),
        _f32("avx2", "AVX2 (f32)", ("avx2", "fma"), march="x86-64-v3", lanes=8),
    )
}
"""By name, the fastest of each precision first."""


def variants_for(precision: Precision) -> list[Variant]:
    """The kernels that compute in ``precision``, the fastest first."""
    return [each for each in VARIANTS.values() if each.precision == precision]


def choose(precision: Precision) -> tuple[Variant | None, str | None]:
    """The fastest kernels for ``precision`` here, or None and why there are none."""
    if precision == "bf16" and has_amx():
        return None, "torch's own products use AMX here, which is faster"
    candidates = variants_for(precision)
    usable = next((each for each in candidates if each.unavailable() is None), None)
    return usable, None if usable else candidates[-1].unavailable()


def has_amx() -> bool:
    """Whether the processor has matrix tiles for bf16, several times the rate of AVX-512."""
    return "amx_bf16" in cpu_flags()
