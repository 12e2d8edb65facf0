"""Which kernels train on this machine: the fastest that are built, and that have proven themselves here."""

import contextlib
import json
import subprocess
from time import perf_counter

from data.errors import UserError, one_line
from slm.kernels.library import VARIANTS, Kernels, Precision, Variant, load, variants_for
from slm.machine.cpp_build import cache_dir
from slm.machine.crashes import CRASHES, ended_by, run_trial
from slm.report import atomic_write_json


def choose(precision: Precision) -> tuple[Variant | None, str | None]:
    """The fastest kernels for ``precision`` that work here, and why a faster kind does not, or why there are none.

    Builds them (5 to 10 s) and tries them (3 s) where this has not happened yet.
    """
    missing: str | None = None
    faults: list[str] = []
    for variant in variants_for(precision):
        if reason := variant.unavailable():
            missing = reason
        elif reason := fault(variant):
            faults.append(f"those for {variant.title} {reason}")
        else:
            return variant, "; ".join(faults) or None
    return None, "; ".join(faults) or missing


def open_kernels(name: str | bool, precision: Precision) -> tuple[Kernels | None, str]:
    """The kernels of the variant ``name``, and a line on them. auto, true: the fastest for ``precision`` that work.

    None in their place where there are none; the line then says why. UserError where those named do not work.
    """
    began = perf_counter()
    named = VARIANTS.get(str(name))
    chosen, reason = choose(precision) if named is None else (named, named.unavailable())
    if chosen is None or (named is not None and reason):
        return None, f"no training kernels: {reason}"
    if named is not None and (wrong := fault(named)):
        raise UserError(f"train.kernels={named.name}: these kernels {wrong}; train.kernels=auto takes what works")
    kernels, seconds = load(chosen.name), perf_counter() - began
    built = f", built and tried in {seconds:.0f} s" if seconds > 1 else ""
    left_out = f"; {reason}" if reason else ""
    return kernels, f"training kernels for {chosen.title}{built} (kept in {cache_dir()}){left_out}"


def fault(variant: Variant) -> str | None:
    """What is wrong with these kernels on this machine, in some words; None where they compute what PyTorch computes.

    The answer is kept beside the library. Where there is none (the trial was stopped from outside), they are taken to
    work.
    """
    try:
        library = variant.build()
    except (RuntimeError, OSError) as error:
        return f"cannot be built ({one_line(error)})"
    kept = library.with_suffix(".trial.json")
    with contextlib.suppress(OSError, ValueError, KeyError):
        found: str | None = json.loads(kept.read_text())["fault"]
        return found
    known, found = _try_it(variant.name)
    if known:
        with contextlib.suppress(OSError):  # it is tried again the next time
            atomic_write_json(kept, {"fault": found})
    return found


def _try_it(name: str) -> tuple[bool, str | None]:
    """Whether the trial came to an answer, and the fault that it found."""
    try:
        done = run_trial("slm.kernels.self_check", name)
    except (subprocess.SubprocessError, OSError):
        return False, None
    return read_trial(done.stdout.decode(errors="replace"), done.returncode)


def read_trial(output: str, status: int) -> tuple[bool, str | None]:
    """The same from what the trial printed and its exit status."""
    with contextlib.suppress(ValueError, KeyError, IndexError):
        answer = json.loads(output.strip().splitlines()[-1])
        wrong = f"compute wrong gradients (off by {answer['error']:.0%} of their size)"
        return True, None if answer["right"] else wrong
    name = ended_by(status)
    if name in CRASHES:
        return True, f"die with {name}"
    return False, None
