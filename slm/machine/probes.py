"""What this machine does when asked: matrix products, memory, disk, compiler. Each answer takes under a few seconds."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

INSTRUCTION_SETS = {
    "avx2": "AVX2",
    "avx_vnni": "AVX-VNNI",
    "avx512f": "AVX-512",
    "avx512_vnni": "AVX512-VNNI",
    "avx512_bf16": "AVX512-BF16",
    "amx_bf16": "AMX-BF16",
    "amx_int8": "AMX-INT8",
    "asimd": "NEON",
    "i8mm": "I8MM",
    "bf16": "BF16",
    "sve": "SVE",
}
"""What matters to matrix products: Linux's names for it, and the usual ones."""
ALLOCATORS = ("tcmalloc", "jemalloc", "mimalloc")


def instruction_sets(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """The members of ``INSTRUCTION_SETS`` that this processor supports."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    present = set(flags.partition(":")[2].split())
    return [name for flag, name in INSTRUCTION_SETS.items() if flag in present]


def allocator(maps: Path = Path("/proc/self/maps")) -> str:
    """The allocator loaded into this process: one of ``ALLOCATORS``, or ``glibc``, or ``other``."""
    try:
        text = maps.read_text()
    except OSError:
        return "other"
    for name in ALLOCATORS:
        if name in text:
            return name
    return "glibc" if "libc.so.6" in text else "other"


def huge_pages(setting: Path = Path("/sys/kernel/mm/transparent_hugepage/enabled")) -> str | None:
    """Transparent huge pages: ``always``, ``madvise`` or ``never``; None where the system has none."""
    try:
        text = setting.read_text()
    except OSError:
        return None
    return text[text.index("[") + 1 : text.index("]")] if "[" in text else None


@contextlib.contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """Torch computes with ``threads`` threads inside, and with as many as before afterwards."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def gemm_gflops(dtype: str, threads: int, seconds: float = 0.3) -> float:
    """The rate of ``F.linear`` of 2048 x 2048 by 2048 x 768 in ``dtype`` ("f32", "bf16"): the best of many, GFLOP/s."""
    import torch

    kind = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
    with torch_threads(threads):
        a_MK, b_NK = torch.randn(2048, 768).to(kind), torch.randn(2048, 768).to(kind)
        flops = 2 * 2048 * 2048 * 768

        def call() -> float:
            start = perf_counter()
            torch.nn.functional.linear(a_MK, b_NK)
            return perf_counter() - start

        best = call()  # it also picks a kernel, which is nothing where bf16 is emulated and a call takes a second
        began = perf_counter()
        while best < 3 * seconds and perf_counter() - began < seconds:
            best = min(best, call())
        return flops / best / 1e9


def memory_gb_per_s(threads: int, megabytes: int = 256) -> float:
    """Bytes read and written per second while copying ``megabytes`` of f32 (best of 4), GB/s."""
    import torch

    with torch_threads(threads):
        source = torch.ones(megabytes * 2**20 // 4)
        target = torch.zeros_like(source)
        best = float("inf")
        for _ in range(4):
            start = perf_counter()
            target.copy_(source)
            best = min(best, perf_counter() - start)
        return 2 * source.nbytes / best / 1e9


def disk_mb_per_s(folder: Path, megabytes: int = 64) -> float:
    """The speed at which ``megabytes`` are written to ``folder`` and flushed to its disk, MB/s. Leaves nothing."""
    block = os.urandom(2**20)  # some disks and file systems compress
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".speed.") as file:
        start = perf_counter()
        for _ in range(megabytes):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        return megabytes * 2**20 / (perf_counter() - start) / 1e6


INDUCTOR_TRIAL = """
import os, shutil, sys, time
import torch
try:
    start = time.perf_counter()
    compiled = torch.compile(lambda x: (x * float(sys.argv[1])).sin() + 1)
    assert torch.isfinite(compiled(torch.randn(4096))).all()
    print(time.perf_counter() - start)
finally:
    shutil.rmtree(os.environ["TORCHINDUCTOR_CACHE_DIR"], ignore_errors=True)  # its caller may have been killed
"""


class InductorTrial:
    """torch.compile tried on one line of code in its own process, while this one does something else.

    Used with ``with``: the process, its compiler and its folder are gone afterwards, whatever happened.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="slm-inductor-", ignore_cleanup_errors=True)
        # A separate cache: what was compiled before says nothing about the compiler of today. The compiler's
        # temporary files go there too: one that is killed leaves them.
        environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": self._folder.name, "TMPDIR": self._folder.name}
        self._process = subprocess.Popen(
            [sys.executable, "-c", INDUCTOR_TRIAL, "0.5"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> "InductorTrial":
        return self

    def __exit__(self, *_: object) -> None:
        # The whole group: a compiler that outlives its caller would write into the folder again.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        self._folder.cleanup()

    def result(self, timeout: float) -> dict[str, Any]:
        """``{"works": True, "seconds": s}``; False with a ``reason``; None where it was not ready in time."""
        try:
            out, err = self._process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            return {"works": None, "reason": f"not ready in {timeout:.0f} s"}
        if self._process.returncode == 0:
            return {"works": True, "seconds": float(out)}
        lines = [line.strip() for line in err.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()] or lines or ["no reason given"]
        return {"works": False, "reason": errors[-1][:200]}
