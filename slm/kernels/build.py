"""Compile the kernels for this processor, once: the library is cached under a hash of everything it stands on."""

import hashlib
import os
import platform
import shutil
import subprocess
from pathlib import Path

from data.storage import cache_home

SOURCES = ("linear.cpp", "attention.cpp", "norms.cpp", "head.cpp")
HEADERS = ("simd.h", "gemm.h")
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
    if compiler() is None:
        return "there is no g++ (install it with: apt install g++)"
    return None


def has_amx() -> bool:
    """Whether the processor has matrix tiles for bf16, several times the rate of AVX-512."""
    return "amx_bf16" in cpu_flags()


def compiler() -> str | None:
    """The C++ compiler: ``CXX`` where that is a g++, else g++. clang++ would bring a second OpenMP along."""
    named = os.environ.get("CXX", "")
    return shutil.which(named) if "g++" in Path(named).name and shutil.which(named) else shutil.which("g++")


def cpu_flags() -> frozenset[str]:
    """The processor's features as the kernel lists them; empty where it does not."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("flags"):
                return frozenset(line.split(":", 1)[1].split())
    except OSError:
        pass
    return frozenset()


def cache_dir() -> Path:
    """Where built libraries are kept."""
    return cache_home() / "kernels"


def build() -> Path:
    """The library's path; compiled where it is not there. RuntimeError with the compiler's words where that fails."""
    command = compiler()
    if command is None:
        raise RuntimeError("there is no C++ compiler")
    folder = Path(__file__).parent
    version = subprocess.run([command, "-dumpfullversion", "-dumpversion"], capture_output=True, text=True).stdout
    key = hashlib.sha256("\n".join([command, version, *FLAGS, *sorted(cpu_flags())]).encode())
    for name in (*HEADERS, *SOURCES):
        key.update((folder / name).read_bytes())
    path = cache_dir() / f"{key.hexdigest()[:24]}.so"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    # Several processes may build at once: each writes its own file, the last rename wins, all are the same.
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    done = subprocess.run(
        [command, *FLAGS, *(str(folder / name) for name in SOURCES), "-o", str(fresh)], capture_output=True, text=True
    )
    if done.returncode:
        fresh.unlink(missing_ok=True)
        raise RuntimeError(f"{command} could not build the training kernels: {done.stderr.strip()[:300]}")
    fresh.replace(path)
    return path
