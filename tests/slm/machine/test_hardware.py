"""What a process asks of the machine."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from slm.machine import hardware

KEPT = """
import re, sys
from slm.machine import hardware
if not hardware.keep_freed_memory():
    sys.exit(77)
blocks = [bytearray(64 << 20) for _ in range(6)]
held = hardware.rss_bytes()
del blocks
assert hardware.rss_bytes() > held - (64 << 20), "freed blocks went back to the kernel"
heaps = re.findall(r"\\[heap\\]\\n(.*?)VmFlags:([^\\n]*)", open("/proc/self/smaps").read(), re.S)
assert any("hg" in flags.split() for _, flags in heaps), "no part of the heap asks for huge pages"
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")
def test_freed_memory_is_kept_and_asks_for_huge_pages() -> None:
    if not Path("/sys/kernel/mm/transparent_hugepage/enabled").exists():
        pytest.skip("this kernel has no transparent huge pages")
    done = subprocess.run([sys.executable, "-c", KEPT], capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip("not glibc")
    assert done.returncode == 0, done.stderr


RETURNED = """
from slm.machine import hardware
hardware.give_back_freed_memory()
before = hardware.rss_bytes()
for _ in range(3):
    blocks, small = [], []
    for n in range(1, 48):
        blocks.append(bytearray(n % 20 + 5 << 20))
        small.append(bytearray(3 << 20))
    del blocks
    assert hardware.rss_bytes() < before + (200 << 20), "freed blocks leave holes"
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")
def test_freed_memory_goes_back_where_that_is_asked_for() -> None:
    done = subprocess.run([sys.executable, "-c", RETURNED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_benchmark_sets_threads_before_torch_is_there() -> None:
    """libgomp reads its variables once: ``share_cores`` inside a contender's process must come before torch."""
    check = "import sys, slm.train.tools.bench; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_slow_format_is_known_after_a_call(monkeypatch) -> None:
    """Seven products in emulated bf16 take seconds, at the start of every run."""
    import torch

    calls = []

    def linear(a, b):
        calls.append(a.dtype)
        if a.dtype == torch.bfloat16:
            time.sleep(0.2)

    monkeypatch.setattr(torch.nn.functional, "linear", linear)
    assert hardware.bf16_speedup() < 0.01
    assert (calls.count(torch.float32), calls.count(torch.bfloat16)) == (2, 2)


def test_a_disturbed_start_does_not_choose_the_number_format(monkeypatch) -> None:
    """A product takes a fraction of a millisecond with sixteen threads: a pause at the start covers several of them."""
    import torch

    calls = []

    def linear(a, b):
        calls.append(a.dtype)
        disturbed = a.dtype == torch.bfloat16 and calls.count(torch.bfloat16) <= 6
        time.sleep(0.008 if disturbed else 0.002 if a.dtype == torch.float32 else 0.0005)

    monkeypatch.setattr(torch.nn.functional, "linear", linear)
    assert hardware.bf16_speedup() > 2
