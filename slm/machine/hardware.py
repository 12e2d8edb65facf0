"""What a process gets from this machine: threads, a CPU quota, memory, the speed of bf16. Torch is imported late."""

import contextlib
import ctypes
import math
import os
import sys
import time
from pathlib import Path

SPINS_VARIABLE = "GOMP_SPINCOUNT"
"""Environment variable: how often a thread of libgomp polls for the others before it sleeps."""
SHARES_CORES = "SLM_SHARES_CORES"
"""Environment variable: set if this toolkit, and not the user, has set SPINS_VARIABLE."""
BF16_WORTH_IT = 1.1
"""Training uses bf16 where the machine multiplies more than this many times as fast in it as in f32."""
BF16_TRIAL_SECONDS = 0.1
"""Seconds of products in both formats at each start of a run, and at least one product of each."""


def n_threads() -> int:
    """Cores this process may use at once: its affinity mask, cut by a cgroup's CPU quota (rounded up)."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS has no affinity
        cores = os.cpu_count() or 1
    quota = cpu_quota()
    return max(1, min(cores, math.ceil(quota)) if quota else cores)


def compute_threads() -> int:
    """Threads for matrix products: one per usable physical core, slow cores of a hybrid processor left out.

    Two threads on one core share its multipliers, and a team waits for its slowest member. A CPU quota counts too.
    """
    from slm.machine import topology

    return max(1, min(n_threads(), len(topology.read().fast_cores)))


def cpu_quota() -> float | None:
    """CPUs a container may use (cgroup v2, then v1), or None where nothing limits it."""
    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        pass
    try:
        quota_us = int(Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").read_text())
        period_us = int(Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us").read_text())
        return quota_us / period_us if quota_us > 0 else None
    except (OSError, ValueError):
        return None


def share_cores() -> None:
    """Let threads that wait for each other sleep soon, so that work goes on where other programs run too.

    libgomp's threads spin at every barrier until the last one arrives. On a busy machine the last one waits for a core
    that the others spin on, and a step takes up to ten times as long. With this setting they sleep after 1,000 turns.
    Call before torch or llama.cpp is imported; ``GOMP_SPINCOUNT`` in the environment wins.
    """
    if SPINS_VARIABLE not in os.environ:
        os.environ |= {SPINS_VARIABLE: "1000", SHARES_CORES: "1"}


def waits_as_told() -> bool:
    """Whether the user's environment says how threads wait for each other: that wins over what this toolkit chooses."""
    return "OMP_WAIT_POLICY" in os.environ or (SPINS_VARIABLE in os.environ and SHARES_CORES not in os.environ)


_EARLIER = [0.0]
"""Seconds of this process before ``restart_process_clock``."""


def process_seconds() -> float:
    """Seconds since this process was started, its imports included, or since ``restart_process_clock``; the machine's
    sleep since then is not counted."""
    import psutil

    return max(0.0, time.time() - psutil.Process().create_time() - (asleep_seconds() - _ASLEEP) - _EARLIER[0])


def restart_process_clock() -> None:
    """What follows is another run of this process, and its time begins now."""
    _EARLIER[0] += process_seconds()


def clocks() -> tuple[int, int]:
    """The clock that stops while the machine sleeps, and the one that does not."""
    if sys.platform == "darwin":
        return time.CLOCK_UPTIME_RAW, time.CLOCK_MONOTONIC
    return time.CLOCK_MONOTONIC, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def asleep_seconds() -> float:
    """For how long the machine has slept since it was started."""
    awake, total = clocks()
    return time.clock_gettime(total) - time.clock_gettime(awake)


_ASLEEP = asleep_seconds()
"""When this process began, or nearly: it imports this module early."""


def rss_bytes() -> int:
    """Resident memory of this process, bytes."""
    import psutil

    return psutil.Process().memory_info().rss


def peak_rss_bytes() -> int:
    """The most resident memory this process has held so far, bytes."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts KiB


def reset_peak_rss() -> None:
    """Let ``recent_peak_rss_bytes`` count from now on, where the system can do that (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets the peak, and nothing else


def recent_peak_rss_bytes() -> int:
    """The most resident memory since ``reset_peak_rss``, bytes; where the system cannot tell, the most so far."""
    with contextlib.suppress(OSError, StopIteration, ValueError, IndexError):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) * 1024
    return peak_rss_bytes()


_MAPPED = 1 << 22
"""Bytes; glibc's own threshold moves up to 32 MiB with what is freed, and blocks below it leave holes in the heap."""


def keep_freed_memory() -> bool:
    """Tell glibc to keep big blocks instead of handing each back to the kernel. True where that took effect.

    A training step frees and allocates the same large activations again and again; by default glibc unmaps
    every block above 32 MB and each step then pays for page faults on fresh zeroed pages (1.3 times the step
    on the machine this was measured on). The kept memory asks for huge pages. Call before the first large allocation.
    """
    if sys.platform != "linux":
        return False
    try:
        libc = ctypes.CDLL("libc.so.6")
        m_trim_threshold, m_top_pad, m_mmap_max = -1, -2, -4  # malloc.h
        done = [
            libc.mallopt(m_mmap_max, 0),
            libc.mallopt(m_trim_threshold, -1),
            libc.mallopt(m_top_pad, 256 * 2**20),
        ]
        if all(done):
            _huge_pages(libc)
    except (OSError, AttributeError):  # not glibc
        return False
    return all(done)


def give_back_freed_memory() -> None:
    """Tell glibc to hand every block above ``_MAPPED`` back to the kernel when it is freed: for runs in which memory
    counts for more than page faults. Call before the first large allocation, and without ``keep_freed_memory``."""
    if sys.platform == "linux":
        m_mmap_threshold = -3  # malloc.h
        with contextlib.suppress(OSError, AttributeError):  # not glibc
            ctypes.CDLL("libc.so.6").mallopt(m_mmap_threshold, _MAPPED)


def _huge_pages(libc: ctypes.CDLL) -> None:
    """Ask for huge pages where the heap will grow: half of the machine's memory, of which nothing is touched here.

    This matters where the kernel gives them only on request (``madvise``, the default of many distributions). Where it
    refuses, the heap works without them.
    """
    size, page, madv_hugepage = os.sysconf("SC_PHYS_PAGES") // 2, os.sysconf("SC_PAGE_SIZE"), 14
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.restype, libc.free.argtypes = None, [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    block = libc.malloc(size * page)
    if not block:
        return
    first = -(-block // page) * page
    libc.madvise(first, (size - 1) * page, madv_hugepage)
    libc.free(block)  # the trim threshold keeps it in the heap


def bf16_speedup() -> float:
    """How many times faster a matrix product runs here in bf16 than in f32: the fastest of each, in turn.

    Machines without AVX512-BF16 or AMX emulate bf16 and are slower at it than at f32. Not the median: with many threads
    a product takes less than a millisecond, and whatever else runs for some milliseconds is longer than most of them.
    """
    import time

    import torch

    kinds = (torch.float32, torch.bfloat16)
    a_MK, b_NK = torch.randn(512, 768), torch.randn(2048, 768)
    pairs = {kind: (a_MK.to(kind), b_NK.to(kind)) for kind in kinds}
    for kind in kinds:
        torch.nn.functional.linear(*pairs[kind])  # the first call packs and picks a kernel
    fastest = dict.fromkeys(kinds, float("inf"))
    began = time.perf_counter()
    while True:
        for kind in kinds:
            start = time.perf_counter()
            torch.nn.functional.linear(*pairs[kind])
            fastest[kind] = min(fastest[kind], time.perf_counter() - start)
        if time.perf_counter() - began > BF16_TRIAL_SECONDS:
            return fastest[torch.float32] / fastest[torch.bfloat16]
