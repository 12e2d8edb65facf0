"""The process prepared for training: threads, allocator, number format, compiler, with a line on each choice."""

import os
import platform
from dataclasses import dataclass

import torch

from slm.data.errors import UserError
from slm.data.storage import cache_home
from slm.kernels.choice import open_kernels
from slm.kernels.native import VARIANTS, Kernels, Variant
from slm.machine import hardware
from slm.machine.cpp_build import torch_compile_lacks
from slm.train.config import EAGER, INTEGER_BITS, TrainConfig


@dataclass(frozen=True)
class Environment:
    """The choices for this process."""

    threads: int
    precision: str
    """"bf16" (autocast; weights and optimizer stay f32) or "f32"."""
    compile: bool
    """Compile with torch.compile what the kernels do not do."""
    notes: tuple[str, ...]
    """One line about each choice that depends on the machine, to be printed."""
    kernels: Kernels | None = None
    """The hand-written training kernels, where they are used."""

    def autocast(self) -> torch.autocast:
        return torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.precision == "bf16")


def prepare(
    config: TrainConfig,
    *,
    threads: int = 0,
    precision: str | None = None,
    bits: int | None = None,
    compiles: bool = True,
    lean: bool = False,
) -> Environment:
    """Set threads, allocator and caches for this process. Call it before the first large allocation.

    ``threads``: what this process takes where the configuration names no number; 0: every core it may use.
    ``precision`` takes the place of ``config.precision``, for example with rank 0's choice. ``bits``: the kernels that
    ``auto`` takes round the values of a product to integers of this many bits at least; the configuration's for a
    trained model where none are given. ``compiles``: whether torch.compile may be used. ``lean``: large blocks of
    memory go back to the system when they are free, which takes time: kept, they would not fit one another after a
    while.
    """
    notes = []
    compiles = compiles and config.kernels != EAGER
    if not lean:
        hardware.keep_freed_memory()
    threads = config.threads or threads or hardware.compute_threads()
    torch.set_num_threads(threads)
    cache = cache_home() / "inductor"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache))
    named = _named_variant(config)
    if precision is None:
        precision, measured = (named.precision, "") if named else number_format(config)
        notes.append(measured)
    kernels, note = None, ""
    if config.kernels not in (False, EAGER):
        bits = bits or config.kernel_bits(new=False)
        kernels, note = open_kernels(named.name if named else True, "bf16" if precision == "bf16" else "f32", bits=bits)
    if kernels is not None:
        return Environment(
            threads=threads,
            precision=precision,
            compile=compiles and torch_compile_lacks() is None,
            notes=tuple(filter(None, (*notes, note))),
            kernels=kernels,
        )
    notes.append(note)
    if compiles and (lack := torch_compile_lacks()):
        compiles = False
        notes.append(f"training runs uncompiled, more slowly: {lack}")
    elif compiles:
        notes.append(f"torch.compile: the first steps wait for the compiler; kept in {cache} for the next run")
    return Environment(threads=threads, precision=precision, compile=compiles, notes=tuple(filter(None, notes)))


def number_format(config: TrainConfig) -> tuple[str, str]:
    """``bf16`` or ``f32``, as configured or as this machine multiplies faster, and a line where that was measured."""
    if named := _named_variant(config):
        return named.precision, ""
    if config.precision != "auto":
        return config.precision, ""
    ratio = hardware.bf16_speedup()
    precision = "bf16" if ratio > hardware.BF16_WORTH_IT else "f32"
    return precision, f"{precision}: this machine multiplies {ratio:.1f} times as fast in bf16 as in f32"


def _named_variant(config: TrainConfig) -> Variant | None:
    """The kernels that ``train.kernels`` and ``train.precision`` name between them; None where ``auto`` may choose.

    UserError where the two disagree, and where this machine cannot run what they name.
    """
    kernels, bits = config.kernels, INTEGER_BITS.get(config.precision, 32)
    if kernels in ("auto", True, False, EAGER):
        if bits == 32:
            return None
        if kernels in (False, EAGER):
            raise UserError(
                f"train.precision={config.precision} is computed by the training kernels: leave "
                f"train.kernels={EAGER if kernels else 'false'} out"
            )
        here = platform.machine()
        found = [each for each in VARIANTS.values() if each.bits == bits and each.machine == here]
        asked = f"train.precision={config.precision}"
        if not found:
            raise UserError(f"{asked}: there are no such kernels for {here}; leave it at auto")
    else:
        of_set = [each for each in VARIANTS.values() if each.instructions == kernels]
        found = [each for each in of_set if each.bits == bits]
        asked = f"train.kernels={kernels}"
        if not found or config.precision not in ("auto", found[0].precision, *INTEGER_BITS):
            raise UserError(
                f"{asked} computes in {of_set[0].precision}, but train.precision={config.precision}: "
                "leave one of the two out"
            )
    runs = [(each, each.unavailable()) for each in found]
    chosen, reason = next((each for each in runs if each[1] is None), runs[-1])
    if reason:
        raise UserError(f"{asked}: {reason}; train.kernels=auto chooses kernels that run here")
    return chosen
