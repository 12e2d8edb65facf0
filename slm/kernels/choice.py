"""Which kernels train on this machine: the fastest that are built, and that have proven themselves here."""

import contextlib
import json
import platform
import subprocess
from time import perf_counter
from typing import Any

import torch

from slm.data.errors import UserError, one_line
from slm.kernels.native import VARIANTS, Kernels, Precision, Variant, load, variants_for
from slm.machine.cpp_build import cache_dir
from slm.machine.crashes import CRASHES, ended_by, run_trial
from slm.report import atomic_write_json

WORTH_IT = 1.2
"""Kernels of unknown speed have to be this many times as fast as PyTorch uncompiled: torch.compile was 1.17
times as fast as that where it was measured (``10m`` in f32, docs/results/training-speed.md)."""

INTEGERS_WORTH_IT = 1.2
"""Products of integers have to be this many times as fast as those in f32, in the first cache. A step gains
less, because its values have to be rounded: 1.3 of 1.5 on a Zen 3."""


def choose(precision: Precision, *, bits: int = 16) -> tuple[Variant | None, str | None]:
    """The fastest kernels for ``precision`` that work here, and why a faster kind does not, or why there are none.

    ``bits``: none that round the values of a product to integers of fewer bits; 32: to none at all. Builds them (5 to
    10 s), tries them (3 s) and times them if need be (5 s) where this has not happened yet.
    """
    missing = f"there are none in {precision} for {platform.machine()} under {platform.system()}"
    faults: list[str] = []
    for variant in variants_for(precision):
        if variant.bits < bits:
            continue
        if reason := variant.unavailable():
            missing = reason
        elif reason := fault(variant) or (None if variant.timed else slowness(variant)) or dull_integers(variant):
            faults.append(f"those for {variant.title} {reason}")
        else:
            return variant, "; ".join(faults) or None
    return None, "; ".join(faults) or missing


def open_kernels(name: str | bool, precision: Precision, *, bits: int = 16) -> tuple[Kernels | None, str]:
    """The kernels of the variant ``name``, and a line on them. auto, true: the fastest for ``precision`` that work.

    ``bits``: of those, none that round the values of a product to integers of fewer bits; 32: to none at all.

    None in their place where there are none; the line then says why. UserError where those named do not work.
    """
    began = perf_counter()
    named = VARIANTS.get(str(name))
    chosen, reason = choose(precision, bits=bits) if named is None else (named, named.unavailable())
    if chosen is None or (named is not None and reason):
        return None, f"no training kernels: {reason}"
    if named is not None and (wrong := fault(named)):
        raise UserError(f"{named.options}: these kernels {wrong}; train.kernels=auto takes what works")
    kernels, seconds = load(chosen.name), perf_counter() - began
    built = f", built and tried in {seconds:.0f} s" if seconds > 1 else ""
    left_out = f"; {reason}" if reason else ""
    return kernels, f"training kernels for {chosen.title}{built} (kept in {cache_dir()}){left_out}"


def fault(variant: Variant) -> str | None:
    """What is wrong with these kernels on this machine, in some words; None where they compute what PyTorch computes.

    The trial's answer is kept beside the library. Where there is none (the trial was stopped from outside), they are
    taken to work, if they can be loaded: the cache's folder may allow no programs, and a file may be damaged.
    """
    if found := _found_fault(variant):
        return found
    try:
        load(variant.name)
    except (RuntimeError, OSError) as error:
        return f"cannot be loaded ({one_line(error)}; {cache_dir()} holds them)"
    return None


def _found_fault(variant: Variant) -> str | None:
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


def slowness(variant: Variant) -> str | None:
    """Why these kernels are not worth taking, in some words; None where they are. They must be built.

    The measured rate is kept beside the library, for each number of threads.
    """
    threads, found = torch.get_num_threads(), 0.0
    kept = variant.build().with_suffix(f".gain-{threads}.json")
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads(kept.read_text())["gain"]
    if not found:
        with contextlib.suppress(subprocess.SubprocessError, OSError, ValueError, KeyError, IndexError):
            done = run_trial("slm.kernels.step_rate", variant.name, str(threads))
            found = _answer(done.stdout.decode(errors="replace"))["gain"]
        if not found:
            return "could not be timed"
        with contextlib.suppress(OSError):  # it is measured again the next time
            atomic_write_json(kept, {"gain": found})
    if found >= WORTH_IT:
        return None
    return f"are {found:.2f} times as fast as PyTorch, not {WORTH_IT} times ({variant.options} takes them)"


def dull_integers(variant: Variant) -> str | None:
    """Why products of integers are not worth taking here, in some words; None where they are, or where there are none.

    The measured rate is kept beside the library, which must be built and tried.
    """
    if variant.bits == 32:
        return None
    kept = variant.build().with_suffix(".gain.json")
    try:
        found = float(json.loads(kept.read_text())["integers"])
    except (OSError, ValueError, KeyError):
        found = load(variant.name).integer_gain()
        with contextlib.suppress(OSError):  # it is measured again the next time
            atomic_write_json(kept, {"integers": found})
    if found >= INTEGERS_WORTH_IT:
        return None
    named = f"{variant.options} takes them"
    return f"are {found:.2f} times as fast as f32 here, not {INTEGERS_WORTH_IT} times ({named})"


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
        answer = _answer(output)
        wrong = f"compute wrong gradients (off by {answer['error']:.0%} of their size)"
        return True, None if answer["right"] else wrong
    name = ended_by(status)
    if name in CRASHES:
        return True, f"die with {name}"
    return False, None


def _answer(output: str) -> dict[str, Any]:
    """The JSON that a trial printed last. ValueError or IndexError where there is none."""
    answer: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return answer
