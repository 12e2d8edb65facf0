"""A build of llama.cpp that is wrong in one type: a library that is loaded first and replaces what reads q8_0.

With ``LD_PRELOAD`` the real llama.cpp calls it, as it would call its own code that a compiler got wrong.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slm.machine.cpp_build import compiler

# Every processor's build reads the embeddings of a q8_0 file with this function. Which one multiplies depends on the
# instruction set.
_SOURCE = """
extern "C" void dequantize_row_q8_0(const void * x, float * y, long k) {
    WRONG;
}
"""
DIES = "*(volatile int *) 0 = 1"
TRAPS = '__asm__(".byte 0x0f, 0x0b")'
"""An instruction that x86 does not have: SIGILL, as of a build for another processor."""
GARBAGE = "for (long i = 0; i < k; ++i) y[i] = 1.0f"
LATER = """
    static int rows;
    if (++rows > {rows}) { *(volatile int *) 0 = 1; }
    for (long i = 0; i < k; ++i) {
        const unsigned char * block = (const unsigned char *) x + i / 32 * 34;
        const int half = block[0] | block[1] << 8, e = half >> 10 & 31, m = half & 1023;
        const double scale = e ? __builtin_ldexp(1024 + m, e - 25) : __builtin_ldexp(m, -24);
        y[i] = (float) (half >> 15 ? -scale : scale) * (signed char) block[2 + i % 32];
    }
"""
"""It computes right, and dies after ``{rows}`` rows."""


def environment(folder: Path, wrong: str) -> dict[str, str]:
    """Environment of a process in which llama.cpp is wrong (``DIES``, ``TRAPS``, ``GARBAGE``, or ``LATER`` with its
    number), with its own cache.

    Skips the test where such a library cannot be built or loaded.
    """
    command = compiler(gcc_only=True)
    if command is None or sys.platform != "linux":
        pytest.skip("needs g++ and LD_PRELOAD")
    source, library = folder / "wrong.cpp", folder / "wrong.so"
    source.write_text(_SOURCE.replace("WRONG", wrong))
    subprocess.run([command, "-shared", "-fPIC", "-w", str(source), "-o", str(library)], check=True)
    return os.environ | {"LD_PRELOAD": str(library), "XDG_CACHE_HOME": str(folder / "cache")}


def preload(library: Path) -> None:
    """Let the processes that this one starts load ``library`` first."""
    os.environ["LD_PRELOAD"] = str(library)
