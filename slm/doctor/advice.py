"""What to install or change on a machine, from the doctor's record of it.

Tested in tests/slm/test_doctor.py.
"""

import os
import shlex
import sys
from typing import Any

from slm import cli
from slm.llama import verdict
from slm.llama.rebuild import KEEP_STORES, NATIVE, installed_version
from slm.machine.cpp_build import cpu_flags

SLOW_DISK_MB_PER_S = 50
BUSY = 0.5
"""Share of the cores in use by other programs above which the doctor's rates are too low."""


def build_llama() -> str:
    """The command that builds the installed version of llama.cpp, or the newest one, for this processor."""
    version = installed_version()
    package = f"{verdict.PACKAGE}=={version}" if version else verdict.PACKAGE
    flags = f"{NATIVE} {KEEP_STORES}" if "amx_tile" in cpu_flags() else NATIVE
    return (
        f"CMAKE_ARGS={shlex.quote(os.environ.get('CMAKE_ARGS') or flags)} {shlex.quote(sys.executable)} -m pip install "
        f"--force-reinstall --no-cache-dir --no-deps --no-binary {verdict.PACKAGE} {package}"
    )


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
            "python3-dev); train.kernels=eager trains without it"
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
        found.append(f"llama-cpp-python cannot be loaded: {build_llama()} builds it again")
    else:
        missing = _not_built_in(record["isa"], record["llama_cpp"])
        if missing:
            found.append(f"llama.cpp was built without {missing}: {build_llama()} builds one that serves faster")
    if record["disk_mb_per_s"] is None:
        found.append(f"{record['runs_dir']} cannot be written, or is full: choose another place with runs_dir=DIR")
    elif record["disk_mb_per_s"] < SLOW_DISK_MB_PER_S:
        found.append(
            f"the disk of {record['runs_dir']} takes {record['disk_mb_per_s']} MB/s: put runs on a faster one "
            "(runs_dir=DIR) or save less often (train.checkpoint_every)"
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
