"""The roofline of this machine: what its registers and its memory give at most, next to which rates of programs stand.

``python -m slm.kernels.roofline THREADS`` prints it as one line of JSON. ``measure`` runs that in its own process,
which may die, gives its memory back, and loads no torch. It takes about a second.
"""

import ctypes
import json
import math
import platform
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slm.machine import cpp_build
from slm.machine.crashes import run_trial
from slm.machine.memory import available_bytes

SECONDS = 0.2
"""Seconds of each measurement."""
SOURCES = ("roofline.cpp", "bf16/amx.h", "bf16/sizes.h", "whole.h")
TITLES = {
    "amx": "bf16 (AMX)",
    "avx512bf16": "bf16 (AVX512-BF16)",
    "avx512": "f32 (AVX-512)",
    "avx2": "f32 (AVX2)",
    "neon": "f32 (NEON)",
    "sse": "f32 (SSE)",
}
"""Instructions, as ``train.kernels`` names them where there are kernels, and how tables name them."""
_CACHES = 4
"""The array that is read is this many times as large as the last-level caches, and at least 256 MiB."""
_LEAST_BYTES, _MOST_BYTES = 2**28, 2**32
_PORTION_BYTES = 2**23
"""Bytes that a thread reads between two looks at the clock: ``PORTION`` in roofline.cpp."""


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """What was measured."""

    threads: int
    register_peak_gflops: dict[str, dict[int, float]]
    """Instructions (keys of ``TITLES``) -> threads (1 and ``threads``) -> GFLOP/s of multiply-adds, two operations
    each, in a loop that touches registers only; per second of processor time, so that other programs do not count."""
    read_gb_per_s: float
    """10^9 bytes per second that all threads read of an array that no cache holds."""
    read_mib: int
    """The array's size, 2^20 bytes."""

    def peak(self, precision: str) -> float | None:
        """GFLOP/s of all threads with the fastest instructions for "bf16" or "f32"; None where there are none."""
        rates = [
            rates[self.threads]
            for name, rates in self.register_peak_gflops.items()
            if TITLES[name].startswith(precision)
        ]
        return max(rates, default=None)

    def decode_bound(self, bytes_per_token: float) -> float:
        """Tokens per second if each reads ``bytes_per_token`` from memory and nothing else takes time."""
        return self.read_gb_per_s * 1e9 / bytes_per_token

    def record(self) -> dict[str, Any]:
        """For a JSON line."""
        return {
            "threads": self.threads,
            "register_peak_gflops": {
                name: {str(count): round(rate, 1) for count, rate in rates.items()}
                for name, rates in self.register_peak_gflops.items()
            },
            "memory_read_gb_per_s": round(self.read_gb_per_s, 2),
            "memory_read_mib": self.read_mib,
        }

    def rows(self) -> list[list[str]]:
        """For a table: what, and how much."""
        bandwidth = ["memory bandwidth", f"{self.read_gb_per_s:.1f} GB/s read by all threads"]
        return [*peak_rows(self.register_peak_gflops), bandwidth]


def peak_rows(register_peak_gflops: Mapping[str, Mapping[Any, float]]) -> list[list[str]]:
    """``Roofline.register_peak_gflops``, or what ``record`` has of it, for a table."""
    return [[f"register peak, {TITLES[name]}", listed(rates)] for name, rates in register_peak_gflops.items()]


def listed(rates: Mapping[Any, float]) -> str:
    """Rates by number of threads, in words."""
    each = ", ".join(f"{rate:,.0f} with {n} thread{'s' * (int(n) > 1)}" for n, rate in rates.items())
    return f"{each} (GFLOP/s)"


def measure(threads: int) -> Roofline | None:
    """The roofline of ``threads`` threads; None where it cannot be measured (no compiler, or the process died)."""
    with suppress(subprocess.SubprocessError, OSError, ValueError, IndexError, KeyError, TypeError):
        done = run_trial("slm.kernels.roofline", str(threads))
        found = json.loads(done.stdout.splitlines()[-1])
        peaks = found.pop("register_peak_gflops")
        return Roofline(
            register_peak_gflops={name: {int(n): rate for n, rate in rates.items()} for name, rates in peaks.items()},
            **found,
        )
    return None


def measure_here(library: ctypes.CDLL, threads: int, seconds: float = SECONDS) -> dict[str, Any]:
    """The fields of a ``Roofline``."""
    f32 = {16: "avx512", 8: "avx2"}.get(library.slm_f32_lanes(), "neon" if "arm" in _machine() else "sse")
    functions = {
        "amx": library.slm_amx_peak,
        "avx512bf16": library.slm_avx512bf16_peak,
        f32: library.slm_f32_peak,
    }
    peaks: dict[str, dict[int, float]] = {}
    for name, function in functions.items():
        rates = {count: function(count, seconds) / 1e9 for count in sorted({1, threads})}
        if all(rates.values()):
            peaks[name] = rates
    size = read_size(threads)
    return {
        "threads": threads,
        "register_peak_gflops": peaks,
        "read_gb_per_s": library.slm_read_rate(size, threads, seconds) / 1e9,
        "read_mib": size >> 20,
    }


def read_size(threads: int) -> int:
    """Bytes of the array that is read: far more than the caches hold, two portions for each thread, and at most a
    quarter of the free memory."""
    wanted = min(max(_LEAST_BYTES, _CACHES * last_level_caches(), 2 * threads * _PORTION_BYTES), _MOST_BYTES)
    return min(wanted, available_bytes() // 4)


def last_level_caches(cpus: Path = Path("/sys/devices/system/cpu")) -> int:
    """Bytes of all third-level caches; 0 where the system does not say."""
    sizes: dict[str, int] = {}
    for folder in cpus.glob("cpu[0-9]*/cache/index3"):
        with suppress(OSError, ValueError):
            shared = (folder / "shared_cpu_list").read_text()
            sizes[shared] = int((folder / "size").read_text().strip().removesuffix("K")) << 10
    return sum(sizes.values())


def open_library(flags: tuple[str, ...] = ()) -> ctypes.CDLL:
    """The loops, compiled where this has not happened yet (2 s). RuntimeError where that fails."""
    native = "-mcpu=native" if "arm" in _machine() else "-march=native"
    flags = flags or ("-O3", native)
    folder = Path(__file__).parent
    common = ("-std=c++17", "-ffp-contract=fast", "-shared", "-fPIC", "-pthread", "-w")
    built = cpp_build.build(
        [folder / SOURCES[0]],
        (*flags, *common),
        headers=[folder / name for name in SOURCES[1:]],
        what="the roofline's loops",
        openmp=False,
    )
    library = ctypes.CDLL(str(built))
    library.slm_f32_lanes.restype = ctypes.c_long
    for name in ("slm_f32_peak", "slm_avx512bf16_peak", "slm_amx_peak"):
        function = getattr(library, name)
        function.argtypes, function.restype = [ctypes.c_int, ctypes.c_double], ctypes.c_double
    library.slm_read_rate.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_double]
    library.slm_read_rate.restype = ctypes.c_double
    return library


def _machine() -> str:
    name = platform.machine().lower()
    return "arm64" if name == "aarch64" else name


def main(threads: int) -> None:
    """Measure, and print one line."""
    found = measure_here(open_library(), threads)
    if not found["register_peak_gflops"] or not math.isfinite(found["read_gb_per_s"]) or not found["read_gb_per_s"]:
        sys.exit("nothing could be measured")
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
