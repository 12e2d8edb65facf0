"""What the doctor finds out about this machine, as plain values.

Tested in tests/slm/test_doctor.py.
"""

import contextlib
import math
import os
import platform
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

from slm.data.errors import UserError
from slm.data.storage import cache_home
from slm.kernels import roofline
from slm.llama import verdict
from slm.llama.speed.kept import STANDARD, STANDARD_TYPES, decode_speeds
from slm.machine import hardware, memory, probes, topology
from slm.machine.record import VERSIONED, cpu_name

PACKAGES = (*VERSIONED, "transformers", "wandb")
TRIAL_SECONDS = 12.0
"""How long torch.compile's trial may take, most of it two imports of torch."""


def examine(runs_dir: Path, *, try_compile: bool = True, time_decoding: bool = False) -> dict[str, Any]:
    """Everything the doctor finds out, as plain values. Takes about ten seconds, most of it importing and compiling."""
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    with probes.InductorTrial() if try_compile else contextlib.nullcontext() as trial:
        record = _software(busy) | _processor() | _memory(runs_dir)
        # Both trials would disturb each other: the compiler's comes first.
        record["inductor"] = trial.result(TRIAL_SECONDS) if trial else None
    record |= _rates() | _llama()
    record["decode_tok_s"] = _decode_speeds() if time_decoding and record["llama_cpp_check"]["works"] else None
    record |= _kernels(record["precision"])
    return record | _roofline(record)


def _software(busy: float) -> dict[str, Any]:
    from slm.machine.cpp_build import cache_dir, compiler

    versions: dict[str, str | None] = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": versions,
        "compiler": compiler(),
        "kernel_cache": str(cache_dir()),
        "load": round(busy, 2),
    }


def _kernels(precision: str) -> dict[str, str | None]:
    """``kernels``: why training does not use its kernels here, None where it does; ``kernel_variant``: which ones;
    ``kernel_faults``: why faster ones are not used."""
    from slm.kernels.choice import choose

    chosen, reason = choose("bf16" if precision == "bf16" else "f32", bits=8)
    return {
        "kernels": None if chosen else reason,
        "kernel_variant": chosen.name if chosen else None,
        "kernel_faults": reason if chosen else None,
    }


def _processor() -> dict[str, Any]:
    machine = topology.read()
    return {
        "cpu": cpu_name(),
        "cpus": machine.cpus,
        "cores": len(machine.cores),
        "fast_cores": len(machine.fast_cores),
        "smt": machine.smt,
        "hybrid": machine.hybrid,
        "numa_nodes": len(machine.nodes),
        "cpu_quota": hardware.cpu_quota(),
        "isa": probes.instruction_sets(),
        "threads": {
            "train": hardware.compute_threads(),
            "export": hardware.compute_threads(),
            "serve": hardware.compute_threads(),
        },
    }


def _memory(runs_dir: Path) -> dict[str, Any]:
    total, available = memory.total_bytes(), memory.available_bytes()
    folder = next(path for path in (runs_dir.absolute(), *runs_dir.absolute().parents) if path.is_dir())
    speed = None
    if os.access(folder, os.W_OK):
        with contextlib.suppress(OSError):  # the disk is full, or another machine's that refuses root
            speed = round(probes.disk_mb_per_s(folder))
    return {
        "memory_gib": round(total / 2**30, 1),
        "memory_available_gib": round(available / 2**30, 1),
        "allocator": probes.allocator(),
        "huge_pages": probes.huge_pages(),
        "runs_dir": str(runs_dir),
        "disk_free_gib": round(shutil.disk_usage(folder).free / 2**30, 1),
        "disk_mb_per_s": speed,
        "compile_cache": os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(cache_home() / "inductor")),
    }


def _rates() -> dict[str, Any]:
    threads = hardware.compute_threads()
    counts = sorted({2**n for n in range(int(math.log2(threads)) + 1)} | {threads})
    rates = {
        dtype: {count: round(probes.gemm_gflops(dtype, count, 0.15 if count < threads else 0.4)) for count in counts}
        for dtype in ("f32", "bf16")
    }
    ratio = rates["bf16"][threads] / max(1, rates["f32"][threads])
    return {
        "gemm_gflops": rates,
        "memory_gb_per_s": round(probes.memory_gb_per_s(threads), 1),
        "precision": "bf16" if ratio > hardware.BF16_WORTH_IT else "f32",
    }


def _roofline(record: dict[str, Any]) -> dict[str, Any]:
    """``roofline``: what registers and memory give at most; ``training_step``: the kernels' rate, and its shares of
    that and of the best matrix product. Each is None where it was not measured."""
    threads, precision = record["threads"]["train"], record["precision"]
    limits = roofline.measure(threads)
    step = None
    if record["kernel_variant"]:
        from slm.kernels.step_rate import step_rate

        step = step_rate(record["kernel_variant"], threads)
        peak = limits.peak(precision) if limits else None
        step["gemm_peak_fraction"] = step["gflops"] / max(1, record["gemm_gflops"][precision][threads])
        step["register_peak_fraction"] = step["gflops"] / peak if peak else None
    return {"roofline": limits.record() if limits else None, "training_step": step}


def _llama() -> dict[str, Any]:
    """What llama.cpp was built with, None where it cannot be loaded; which types compute right; what is wrong with
    the build. llama.cpp is loaded in another process only, because a wrong build would end this one."""
    found = verdict.examine()
    return {
        "llama_cpp": found.features,
        "llama_cpp_check": {"works": found.works, "fault": found.fault, "unknown": found.unknown},
    }


def _decode_speeds() -> dict[str, float] | None:
    """Type -> tokens per second of a model of 50M weights, one sequence; None where it could not be measured. Kept in
    the cache folder: the first time takes some seconds."""
    try:
        rates = decode_speeds(STANDARD, STANDARD_TYPES, hardware.compute_threads()).tok_s
    except UserError:
        return None
    return {kind: round(rate, 1) for kind, rate in rates.items()}
