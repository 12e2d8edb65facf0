"""The training kernels that can be tested on this machine.

Where the processor lacks AVX512-BF16, AMX or AVX512-VNNI, those kernels are compiled against ``avx512_model/``, a plain
C++ model of their instructions: slow, but with the same results. -O1 builds it in a fifth of the time that -O3 takes,
and it is no slower. ``avx_vnni_model/`` does the same for AVX-VNNI. The f32 kernels for AVX-512 are compiled with the
same 16 lanes for AVX2, at -O1, too. SLM_TEST_MODEL=1 tests them so on a processor that has the instructions.
"""

import functools
import os
import platform
from pathlib import Path

import pytest

from slm.kernels.native import AVX512_VNNI, AVX_VNNI, COMMON_FLAGS, FOLDER, VARIANTS, Kernels, Variant, load
from slm.machine import cpp_build

MODEL = Path(__file__).parent / "avx512_model"
VNNI_MODELS = {AVX512_VNNI: MODEL, AVX_VNNI: MODEL.with_name("avx_vnni_model")}
"""By the compiler's flag for the instructions."""
MODEL_FLAGS = ("-O1", "-mavx2", "-mfma", "-ffp-contract=fast", "-fopenmp", "-shared", "-fPIC", "-std=c++17", "-w")

NAMES = [name for name, variant in VARIANTS.items() if variant.machine == platform.machine()]
"""Of the kernels, those for this kind of processor. tests/slm/kernels/test_other_compilers.py runs NEON's on x86-64."""
SANITIZE = "SLM_TEST_SANITIZE"
"""The environment's word for kernels that watch their own memory and arithmetic (test_sanitizers.py)."""
WITHOUT = "SLM_TEST_MODEL"
"""The environment's word for kernels as a processor with AVX2 alone tests them."""
CALLS = ("-DALWAYS=",)
"""What follows a product is a function (whole.h), instead of standing once more behind each row of each tile. That
compiles twice as fast as a library, four times as fast as linear layers, and its tests take no longer."""
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer", "-g1")
ROLLED = ("-fdisable-tree-cunroll", "-fdisable-tree-cunrolli", "-fira-region=one")
"""GCC's: loops stay loops, which compiles four times as fast, and registers are allocated for a function at once."""


def models_of(variant: Variant) -> list[Path]:
    """The folders with models of the instructions that these kernels use and AVX2 lacks."""
    if variant.precision == "bf16":
        return [MODEL]
    return [model for flag, model in VNNI_MODELS.items() if flag in variant.flags]


def model_flags(variant: Variant) -> tuple[str, ...]:
    """Compiler flags that build these kernels for AVX2, with the models of other instructions."""
    own: tuple[str, ...]
    if variant.precision == "bf16":
        chosen = (each for each in variant.flags if each.startswith("-D"))
        amx = ("-DSLM_AMX_MODEL",) if variant.name == "amx" else ()
        own = (*MODEL_FLAGS, "-Wno-psabi", *chosen, *amx)
    else:
        kept = (each.replace("x86-64-v4", "x86-64-v3") for each in variant.flags if each not in VNNI_MODELS)
        own = ("-O1", *COMMON_FLAGS[1:], *kept)
    return (*own, *ROLLED, *CALLS, *(f"-I{model}" for model in models_of(variant)))


def runs_here(name: str) -> bool:
    """Whether a variant's own build is tested, not a model of it."""
    without = os.environ.get(WITHOUT) and not set(VARIANTS[name].needs) <= set(VARIANTS["avx2"].needs)
    return VARIANTS[name].unavailable() is None and not without


@functools.cache
def kernels_for_test(name: str) -> Kernels:
    """The kernels of a variant; skips where neither they nor a model of them can run."""
    variant = VARIANTS[name]
    watched = SANITIZERS if os.environ.get(SANITIZE) else ()
    here = runs_here(name)
    if here and not watched:
        return load(name)
    if not here and VARIANTS["avx2"].unavailable():
        pytest.skip(f"kernels for {variant.title}: {variant.unavailable()}")
    sources, headers = ([FOLDER / each for each in names] for names in (variant.sources, variant.headers))
    if here:
        # GCC takes ten minutes at -O1 for the sanitizers' checks in inlined tiles.
        flags = (*COMMON_FLAGS, "-O0", *CALLS, *variant.flags)
    else:
        flags = model_flags(variant)
        headers += [header for model in models_of(variant) for header in sorted(model.glob("*.h"))]
    flags = (*flags, *watched)
    head = kernels_for_test(variant.head) if variant.head else None
    return Kernels(cpp_build.build(sources, flags, headers=headers, what="the kernels under test"), name, head)
