"""``python -m slm.doctor``: what this machine has, what will be used of it, and what to install or change for more."""

import contextlib
import math
import os
import platform
import shlex
import shutil
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from data.errors import UserError
from data.storage import cache_home
from slm import cli
from slm.configuration import load
from slm.kernels import roofline
from slm.llama import verdict
from slm.llama.speed.kept import STANDARD, STANDARD_TYPES, decode_speeds
from slm.machine import hardware, memory, probes, topology
from slm.machine.record import VERSIONED, cpu_name
from slm.report import final_json, table

PACKAGES = (*VERSIONED, "transformers", "wandb")
BUILD_LLAMA = (
    f"CMAKE_ARGS=-DGGML_NATIVE=ON {shlex.quote(sys.executable)} -m pip install --force-reinstall --no-deps "
    f"--no-binary {verdict.PACKAGE} {verdict.PACKAGE}"
)
TRIAL_SECONDS = 12.0
"""How long torch.compile's trial may take, most of it two imports of torch."""
SLOW_DISK_MB_PER_S = 50
BUSY = 0.5
"""Share of the cores in use by others above which the figures below are too low."""


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """configs/doctor.yaml."""

    runs_dir: Path = Path("runs")
    compile: bool = True
    decode: bool = True


def main(argv: list[str]) -> int:
    """Measure, print the tables and the JSON line. ``runs_dir=DIR``; ``compile=false``, ``decode=false`` leave those
    trials out."""
    options = load(DoctorOptions, "doctor", argv)
    hardware.share_cores()
    record = examine(options.runs_dir, try_compile=options.compile, time_decoding=options.decode)
    table("This machine", ["what", "found"], machine_rows(record))
    table("What will be used", ["stage", "choice"], choice_rows(record))
    hints = advice(record)
    print("\n".join(["For more:", *(f"  - {hint}" for hint in hints)]) if hints else "Nothing to install or change.")
    final_json(record | {"advice": hints})
    return 0


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

    chosen, reason = choose("bf16" if precision == "bf16" else "f32")
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
            "serve": hardware.n_threads(),
        },
    }


def _memory(runs_dir: Path) -> dict[str, Any]:
    total, available = memory.total_bytes(), memory.available_bytes()
    folder = next(path for path in (runs_dir.absolute(), *runs_dir.absolute().parents) if path.is_dir())
    writable = os.access(folder, os.W_OK)
    return {
        "memory_gib": round(total / 2**30, 1),
        "memory_available_gib": round(available / 2**30, 1),
        "allocator": probes.allocator(),
        "huge_pages": probes.huge_pages(),
        "runs_dir": str(runs_dir),
        "disk_free_gib": round(shutil.disk_usage(folder).free / 2**30, 1),
        "disk_mb_per_s": round(probes.disk_mb_per_s(folder)) if writable else None,
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


# What is printed.


def machine_rows(record: dict[str, Any]) -> list[list[str]]:
    """What was found, for people."""
    cores = f"{record['cores']} cores, {record['cpus']} logical CPUs"
    if record["hybrid"]:
        cores += f", {record['fast_cores']} of them performance cores"
    if record["numa_nodes"] > 1:
        cores += f", {record['numa_nodes']} NUMA nodes"
    if record["cpu_quota"]:
        cores += f"; a quota of {record['cpu_quota']:.1f} CPUs"
    rows = [
        ["processor", record["cpu"]],
        ["usable", cores],
        ["instruction sets", " ".join(record["isa"]) or "unknown"],
        ["memory", f"{record['memory_gib']} GiB, {record['memory_available_gib']} GiB available"],
        ["memory bandwidth", _bandwidth(record)],
    ]
    limits = record.get("roofline") or {}
    rows += roofline.peak_rows(limits.get("register_peak_gflops", {}))
    for dtype, rates in record["gemm_gflops"].items():
        rows.append([f"matrix products, {dtype}", roofline.listed(rates)])
    if step := record.get("training_step"):
        rows.append(["training step", _step(step, record["precision"])])
    disk = (
        "not writable" if record["disk_mb_per_s"] is None else f"{record['disk_mb_per_s']:,} MB/s written and flushed"
    )
    versions = record["versions"]
    rows += [
        ["allocator", f"{record['allocator']}, huge pages: {record['huge_pages'] or 'none'}"],
        [f"disk of {record['runs_dir']}", f"{disk}, {record['disk_free_gib']:,} GiB free"],
        ["C++ compiler", record["compiler"] or "none"],
        ["torch.compile", _inductor(record)],
        ["llama.cpp built with", " ".join(record["llama_cpp"]) if record["llama_cpp"] else "cannot be loaded"],
        ["llama.cpp self-check", _llama_check(record["llama_cpp_check"])],
        ["decoding by type", _decoding(record.get("decode_tok_s"))],
        ["Python, system", f"{record['python']}, {record['system']}"],
        ["packages", ", ".join(f"{name} {version}" for name, version in versions.items() if version)],
    ]
    return rows


def _bandwidth(record: dict[str, Any]) -> str:
    copied = f"{record['memory_gb_per_s']} GB/s copied (read and written)"
    limits = record.get("roofline")
    return f"{limits['memory_read_gb_per_s']:.1f} GB/s read, {copied}" if limits else copied


def _step(step: dict[str, Any], precision: str) -> str:
    of = f"{step['gemm_peak_fraction']:.2f} of the {precision} matrix product"
    if step["register_peak_fraction"]:
        of += f", {step['register_peak_fraction']:.2f} of the register peak"
    return f"{step['gflops']:,.0f} GFLOP/s forward and backward, a small model: {of}"


def _decoding(rates: dict[str, float] | None) -> str:
    if not rates:
        return "not measured"
    fastest_first = sorted(rates, key=lambda kind: -rates[kind])
    listed = ", ".join(f"{kind} {rates[kind]:,.0f}" for kind in fastest_first)
    return f"{listed} (tokens/s of 50M weights, one sequence)"


def _llama_check(check: dict[str, Any]) -> str:
    if check["unknown"]:
        return f"unknown: {check['unknown']}"
    return check["fault"] or f"computes right in {', '.join(check['works'])}"


def _inductor(record: dict[str, Any]) -> str:
    trial = record["inductor"]
    if trial is None:
        return "not tried"
    if trial["works"]:
        return f"works ({trial['seconds']:.1f} s for one line of code, nothing cached)"
    return f"{'unknown' if trial['works'] is None else 'fails'}: {trial['reason']}"


def choice_rows(record: dict[str, Any]) -> list[list[str]]:
    """What the stages will do here by default (train/environment.py decides the same way)."""
    threads = record["threads"]
    own = f"own kernels for {record['kernel_variant']}"
    how = own if uses_kernels(record) else "torch.compile" if compiles(record) else "uncompiled"
    cache = record["kernel_cache"] if uses_kernels(record) else record["compile_cache"]
    rows = [["train", f"{threads['train']} threads, {record['precision']}, {how}"]]
    if how != "uncompiled":
        rows.append(["", f"compiled code is kept in {cache}"])
    if record["kernels"]:
        rows.append(["", f"no kernels of its own: {record['kernels']}"])
    elif record.get("kernel_faults"):
        rows.append(["", f"faster kernels are left out: {record['kernel_faults']}"])
    return [
        *rows,
        ["export", f"{threads['export']} threads" + _fastest_type(record.get("decode_tok_s"))],
        ["serve", f"{threads['serve']} threads"],
    ]


def _fastest_type(rates: dict[str, float] | None) -> str:
    """What this machine likes; speeds within 5 % are about equal, and then the type of more bits is the better one."""
    if not rates:
        return ""
    equal = [kind for kind in rates if rates[kind] >= 0.95 * max(rates.values())]
    best = max(equal, key=STANDARD_TYPES.index)
    return f"; {best} decodes fastest here (quant=auto chooses by this machine's speeds)"


def uses_kernels(record: dict[str, Any]) -> bool:
    """Whether training will use the kernels of slm/kernels here."""
    return record["kernels"] is None


def compiles(record: dict[str, Any]) -> bool:
    """Whether training will be compiled here, as far as is known."""
    trial = record["inductor"]
    return record["compiler"] is not None and (trial is None or trial["works"] is not False)


def advice(record: dict[str, Any]) -> list[str]:
    """What to install or change, one line each; only what applies to ``record``."""
    found = []
    trial = record["inductor"] or {}
    if record["compiler"] is None:
        found.append(
            "no C++ compiler: apt install g++ (Debian, Ubuntu), dnf install gcc-c++ (Fedora) or xcode-select --install "
            "(macOS); training then runs compiled, about 1.4 times as fast"
        )
    elif trial.get("works") is False:
        found.append(
            f"torch.compile fails ({trial['reason']}): reinstall the compiler and Python's headers (apt install g++ "
            "python3-dev); train.compile=false trains without it"
        )
    if record["precision"] == "f32":
        found.append(
            "this processor is no faster in bf16 than in f32, so training uses f32; one with AVX512-BF16 or AMX (AMD "
            "Zen 4 and later, Intel Sapphire Rapids and later) trains 2 to 4 times as fast"
        )
    if record["huge_pages"] == "never":
        found.append(
            "huge pages are off: echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled saves page faults"
        )
    if record["numa_nodes"] > 1:
        nodes = record["numa_nodes"]
        found.append(
            f"{nodes} NUMA nodes: {cli.spelled('train', nproc=nodes)} runs one process per node, each with memory of "
            "its own (train.grad_accum must be divisible by it)"
        )
    if record["cpu_quota"] and record["cpu_quota"] < record["fast_cores"]:
        found.append(
            f"a CPU quota of {record['cpu_quota']:.1f} for {record['fast_cores']} cores: give the container more "
            "(docker run --cpus=N), or whole cores (--cpuset-cpus=0-N), which do not pause"
        )
    if record["hybrid"]:
        found.append(
            f"slow cores next to {record['fast_cores']} fast ones: training uses the fast ones; "
            f"train.threads={record['cores']} takes them all, which is slower on most machines"
        )
    if record["llama_cpp_check"]["fault"]:
        fault = record["llama_cpp_check"]["fault"]
        found.append(f"llama.cpp {fault}: {verdict.REBUILD} builds it again for this processor")
    elif record["llama_cpp"] is None:
        found.append(f"llama-cpp-python cannot be loaded: {BUILD_LLAMA} builds it again")
    else:
        missing = _not_built_in(record["isa"], record["llama_cpp"])
        if missing:
            found.append(f"llama.cpp was built without {missing}: {BUILD_LLAMA} builds one that serves faster")
    if record["disk_mb_per_s"] is None:
        found.append(f"{record['runs_dir']} cannot be written: choose another place with runs_dir=DIR")
    elif record["disk_mb_per_s"] < SLOW_DISK_MB_PER_S:
        found.append(
            f"the disk of {record['runs_dir']} takes {record['disk_mb_per_s']} MB/s: put runs on a faster one "
            "(runs_dir=DIR) or save less often (train.checkpoint_every, train.checkpoint_minutes)"
        )
    if record["memory_available_gib"] < 2:
        found.append("less than 2 GiB of memory is available: end other programs, or keep to the presets tiny and 10m")
    if record["load"] > BUSY * record["cpus"]:
        found.append(
            f"other programs are busy here (load {record['load']}): the rates above are lower than they could be"
        )
    return found


def _not_built_in(isa: list[str], features: list[str]) -> str | None:
    """The best instruction set that the processor has and llama.cpp does not use."""
    for name, feature in (("AVX512-BF16", "AVX512_BF16"), ("AVX-512", "AVX512"), ("AVX2", "AVX2")):
        if name in isa and feature not in features:
            return name
    return None


if __name__ == "__main__":
    sys.exit(cli.run(main))
