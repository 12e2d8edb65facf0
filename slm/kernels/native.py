"""The library of training kernels: its builds, where each can run, and its functions called with tensors.

There is one build per instruction set. The sources in this folder are written once for all number formats, over the
vectors and tiles in ``bf16/`` or ``f32/`` (family.h). A comment above every function gives its arguments and shapes.
"""

import ctypes
import functools
import platform
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from slm.kernels import checked
from slm.machine import cpp_build
from slm.machine.cpp_build import compiler, cpu_flags

FOLDER = Path(__file__).parent
COMMON_FLAGS = ("-O3", "-fopenmp", "-shared", "-fPIC", "-Wall", "-Wextra")
OF_AVX512 = ("-Wno-maybe-uninitialized",)
"""GCC 12 warns of its header for AVX-512: functions there begin with an undefined vector (GCC's bug 105593)."""
Precision = Literal["bf16", "f32"]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """The kernels for one instruction set."""

    name: str
    """Name of the instruction set's library."""
    instructions: str
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
    machine: str = "x86_64"
    """As ``platform.machine`` names it."""
    timed: bool = True
    """``auto`` takes them as faster than PyTorch's own step. False: that has to be measured first, on each machine."""
    bits: int = 32
    """16 or 8: products are of integers of this many bits, to which f32 values are rounded. ``auto`` takes them where
    f32 is not asked for by name, and where this processor is measured to be faster with them; 8 for new models
    alone."""
    head: str = ""
    """The variant that computes the output head, where it is another one: a softmax's gradient has many values that are
    too small beside the target's for 8 bits."""

    @property
    def options(self) -> str:
        """The options that name it."""
        return f"train.kernels={self.instructions}" + (f" train.precision=int{self.bits}" if self.bits < 32 else "")

    def unavailable(self) -> str | None:
        """Why these kernels cannot be built or run here, or None where they can."""
        if platform.system() != "Linux":
            return f"the training kernels are for Linux, and this is {platform.system()}"
        if platform.machine() != self.machine:
            return f"these kernels are for {MACHINES[self.machine]}, and this processor is {platform.machine()}"
        missing = [each for each in self.needs if each not in cpu_flags()]
        if missing:
            return f"this processor has no {missing[-1]}"
        if self.name == "amx" and not _tiles_permitted():
            return "Linux does not give this process AMX's tiles"
        if compiler(gcc_only=True) is None:
            return "there is no g++ (install it with: apt install g++)"
        return None

    def build(self) -> Path:
        """The library's path, compiled if need be, and the head's with it. RuntimeError with the compiler's message
        where that fails."""
        if self.head:
            with ThreadPoolExecutor(1) as beside:  # two compilers at once
                of_head = beside.submit(VARIANTS[self.head].build)
                path = self._build_own()
                of_head.result()
            return path
        return self._build_own()

    def _build_own(self) -> Path:
        sources, headers = ([FOLDER / name for name in names] for names in (self.sources, self.headers))
        return cpp_build.build(sources, (*COMMON_FLAGS, *self.flags), headers=headers, what="the training kernels")


AVX512_VNNI, AVX_VNNI = "-mavx512vnni", "-mavxvnni"
"""GCC's, for products of two or four integers with their sum. It has the second since version 11."""
_LANGUAGE = ("-std=gnu++17", "-ffp-contract=fast")
_PARTS = tuple(
    f"{each}.cpp"
    for each in (
        "linear",
        "weights",
        "attention",
        "attention_backward",
        "short_conv",
        "norms",
        "head",
        "sizes",
        "f32/update",
    )
)
"""Sources of all variants: one body for all number formats. Weights and moments are f32, and so is their update."""
_HEADERS = tuple(
    f"{each}.h" for each in ("family", "whole", "activation", "arena", "tasks", "gemm", "attention", "f32/vec")
)


def _f32(
    name: str,
    title: str,
    needs: tuple[str, ...],
    *,
    march: str,
    lanes: int,
    instructions: str = "",
    flags: tuple[str, ...] = (),
    bits: int = 32,
    **others: Any,
) -> Variant:
    """The f32 kernels with vectors of ``lanes`` values."""
    integers = bits < 32
    headers = ("sizes", "values", "operands", *(("integers", f"int{bits}") if integers else ()))
    return Variant(
        name=name,
        instructions=instructions or name,
        title=title,
        precision="f32",
        needs=needs,
        sources=(*_PARTS, *(("f32/integer_gain.cpp",) if integers else ())),
        headers=(*(f"f32/{each}.h" for each in headers), "tile.h", *_HEADERS),
        flags=(
            f"-march={march}",
            "-mtune=native",
            f"-DSLM_LANES={lanes}",
            *_LANGUAGE,
            *(OF_AVX512 if lanes == 16 else ()),
            *flags,
            *((f"-DSLM_INTEGERS={bits}",) if integers else ()),
        ),
        bits=bits,
        **others,
    )


def _vnni(
    name: str, title: str, needs: tuple[str, ...], *, instructions: str, march: str, lanes: int, flag: str
) -> list[Variant]:
    """Kernels with products of integers: of 8 bits, with the head computed by the second, and of 16."""
    return [
        _f32(
            f"{name}int{bits}",
            f"{title} (f32, products in int{bits})",
            needs,
            instructions=instructions,
            march=march,
            lanes=lanes,
            flags=(flag,),
            bits=bits,
            head=f"{name}int16" if bits == 8 else "",
        )
        for bits in (8, 16)
    ]


MACHINES = {"x86_64": "x86-64", "aarch64": "ARM (aarch64)"}
"""Processors as ``platform.machine`` names them, and as messages do."""
_AVX512 = ("avx512f", "avx512bw", "avx512vl", "avx512dq")


def _bf16(name: str, title: str, needs: tuple[str, ...], *, tile: tuple[str, ...], flags: tuple[str, ...]) -> Variant:
    """The bf16 kernels over one of the two micro-kernels (``tile``: its headers)."""
    return Variant(
        name=name,
        instructions=name,
        title=title,
        precision="bf16",
        needs=(*_AVX512, "avx512_bf16", *needs),
        sources=_PARTS,
        headers=(*(f"bf16/{each}.h" for each in ("values", "sizes", "operands")), *tile, *_HEADERS),
        flags=("-march=native", "-DSLM_BF16", "-DSLM_LANES=16", *_LANGUAGE, *OF_AVX512, *flags),
    )


VARIANTS: dict[str, Variant] = {
    each.name: each
    for each in (
        _bf16("amx", "AMX", ("amx_tile", "amx_bf16"), tile=("bf16/tile_amx.h", "bf16/amx.h"), flags=("-DSLM_AMX",)),
        _bf16("avx512bf16", "AVX512-BF16", (), tile=("bf16/tile_avx512.h", "tile.h"), flags=()),
        *_vnni(
            *("avx512", "AVX512-VNNI", (*_AVX512, "avx512_vnni")),
            instructions="avx512",
            march="x86-64-v4",
            lanes=16,
            flag=AVX512_VNNI,
        ),
        _f32("avx512", "AVX-512 (f32)", _AVX512, march="x86-64-v4", lanes=16),
        *_vnni(
            *("avxvnni", "AVX-VNNI", ("avx2", "fma", "avx_vnni")),
            instructions="avx2",
            march="x86-64-v3",
            lanes=8,
            flag=AVX_VNNI,
        ),
        _f32(
            *("avx2int16", "AVX2 (f32, products in int16)", ("avx2", "fma")),
            instructions="avx2",
            march="x86-64-v3",
            lanes=8,
            bits=16,
        ),
        _f32("avx2", "AVX2 (f32)", ("avx2", "fma"), march="x86-64-v3", lanes=8),
        _f32(
            "neon",
            "NEON (f32)",
            (),  # every aarch64 has it, and an emulator may show the flags of the machine below
            march="armv8-a",
            lanes=4,
            # GCC's first scheduling, which x86 does without, loads all of a step's operands before the first product.
            # Then no registers are left for five of the 24 sums.
            flags=("-fno-schedule-insns",),
            machine="aarch64",
            timed=False,
        ),
    )
}
"""By name, the fastest of each precision first."""


def variants_for(precision: Precision) -> list[Variant]:
    """The kernels for this kind of processor that compute in ``precision``, the fastest first."""
    here = platform.machine()
    return [each for each in VARIANTS.values() if (each.precision, each.machine) == (precision, here)]


def _tiles_permitted() -> bool:
    """Whether Linux lets this process use AMX's tiles. It has to be asked, once (arch_prctl, ARCH_REQ_XCOMP_PERM)."""
    sys_arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    return ctypes.CDLL(None).syscall(sys_arch_prctl, request_permission, tile_data) == 0


P, L, F, I = ctypes.c_void_p, ctypes.c_long, ctypes.c_float, ctypes.c_int  # noqa: E741
SIZES = {
    "slm_activation_bytes": [],
    "slm_width_multiple": [],
    "slm_max_head_dim": [],
    "slm_cross_entropy_rows": [],
    "slm_attention_scratch": [L, L, L, L],
    "slm_attention_backward_scratch": [L, L, L, L],
    "slm_weight_gradient_scratch": [L, L, L],
    "slm_rmsnorm_backward_scratch": [L],
    "slm_short_conv_scratch": [L, L],
}
"""Functions of ``sizes.cpp``, which return how much the others need: a buffer is never made from a number that is
written down a second time in Python."""
SIGNATURES = SIZES | {
    "slm_pack_forward": [P, L, L, P, I],
    "slm_pack_backward": [P, L, L, P, L, L],
    "slm_linear": [P, L, L, P, L, P, P],
    "slm_gate_up": [P, L, L, P, L, P, P, P, I, I],
    "slm_gate_up_backward": [P, L, L, P, L, P, P, P, P, I, I],
    "slm_bias_gradient": [P, L, L, L, P, I],
    "slm_weight_gradient": [P, L, P, L, L, L, L, P, I, P],
    "slm_attention_forward": [P, L, L, L, L, L, L, P, P, P, P, F, F, P, P, P, P],
    "slm_attention_backward": [P, L, L, L, L, L, L, P, P, P, P, F, F, P, P, P, P, P, P, P, P],
    "slm_short_conv": [P, L, L, L, L, P, P, P],
    "slm_short_conv_backward": [P, P, L, L, L, L, P, P, P, P, P],
    "slm_rmsnorm": [P, L, L, P, F, P, P],
    "slm_rmsnorm_backward": [P, P, P, P, L, L, P, P, P, I, P],
    "slm_embed": [P, P, L, L, P],
    "slm_embed_backward": [P, P, L, L, P],
    "slm_cross_entropy": [P, L, L, P, L, F, P, P, F, I, P, P, P],
    "slm_head_backward": [P, L, L, P, L, P],
    "slm_head_block": [L],
    "slm_head_logits": [P, L, L, P, L, P, P, L],
    "slm_softmax": [P, L, L, F, P, P, F, I, P, P],
    "slm_head_backward_part": [P, L, L, P, L, L, P, I],
    "slm_adamw": [P, L, P],
    "slm_sum_of_squares": [P, L],
}
"""The C signatures: pointers, longs, floats, ints."""
ALLOCATING = ("slm_attention_forward", "slm_attention_backward")
"""Functions that allocate memory, and return 1 where there is none."""
SUMMING = ("slm_sum_of_squares",)
"""Functions that return a number (f64)."""
COUNTING = (*SIZES, "slm_head_block")
"""Functions that return a whole number."""


class Kernels:
    """The library's functions, taking tensors where C takes pointers (None is a null pointer).

    Shapes, dtypes and contiguity are the caller's duty, and checked on the way where ``slm.kernels.checked`` is on (in
    tests). ``MemoryError`` where a kernel found no memory.
    """

    def __init__(self, path: Path, name: str = "", head: "Kernels | None" = None) -> None:
        self.name = name
        """The variant's."""
        self.head: Kernels = head or self
        """Those that compute the output head."""
        # torch is imported above and has loaded its OpenMP: the library finds that one, and shares its threads.
        library = ctypes.CDLL(str(path))
        for each, arguments in SIGNATURES.items():
            function = getattr(library, each)
            function.argtypes = arguments
            function.restype = (
                L if each in COUNTING else I if each in ALLOCATING else ctypes.c_double if each in SUMMING else None
            )
            if each in ALLOCATING:
                function.errcheck = _check_memory
            check = checked.checking(self, each) if checked.is_on() else None
            call: Any = functools.partial(_checked_call, check) if check else _call
            setattr(self, each, functools.partial(call, function))
        self.dtype = {2: torch.bfloat16, 4: torch.float32}[self.slm_activation_bytes()]
        """Data type of activations."""
        self.values_per_unit = 4 // self.slm_activation_bytes()
        """Packed operands are units of 32 bits: a pair of bf16, or one f32 (integers take as much room)."""
        self._library = library

    def integer_gain(self) -> float:
        """How many times as fast as f32 this processor multiplies these kernels' integers; 1 for other kernels."""
        if not hasattr(self._library, "slm_integer_gain"):
            return 1.0
        self._library.slm_integer_gain.restype = ctypes.c_double
        return float(self._library.slm_integer_gain())

    def __getattr__(self, name: str) -> Any:  # for type checkers: the functions are set above
        raise AttributeError(f"the training kernels have no function {name}")


def _call(function: Any, *arguments: Any) -> Any:
    return function(*[a.data_ptr() if isinstance(a, torch.Tensor) else a for a in arguments])


def _checked_call(check: Callable[..., None], function: Any, *arguments: Any) -> Any:
    check(*arguments)
    return _call(function, *arguments)


def _check_memory(failed: int, function: Any, arguments: Any) -> int:
    if failed:
        raise MemoryError(f"{function.__name__} found no memory to work in")
    return failed


@functools.cache
def load(name: str) -> Kernels:
    """The kernels of the variant ``name``; built first where this machine has not done so (5 to 10 s).

    RuntimeError where that fails.
    """
    if name == "amx":
        _tiles_permitted()  # each process asks for itself, also one that a trial has started
    variant = VARIANTS[name]
    return Kernels(variant.build(), name, load(variant.head) if variant.head else None)
