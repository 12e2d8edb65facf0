"""A build of llama.cpp that is wrong in one type: a library that is loaded first and replaces the product of q8_0.

With ``LD_PRELOAD`` the real llama.cpp calls it, as it would call its own code that a compiler got wrong.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slm.machine.cpp_build import compiler

_SOURCE = """
extern "C" void ggml_vec_dot_q8_0_q8_0(int, float * s, unsigned long, const void *, unsigned long, const void *,
                                       unsigned long, int) {
    WRONG;
}
"""
DIES = "*(volatile int *) 0 = 1"
GARBAGE = "*s = 1.0f"


def environment(folder: Path, wrong: str) -> dict[str, str]:
    """Environment variables of a process in which llama.cpp is wrong (``DIES``, ``GARBAGE``), with a cache of its own.

    Skips the test where such a library cannot be built or loaded.
    """
    command = compiler(gcc_only=True)
    if command is None or sys.platform != "linux":
        pytest.skip("needs g++ and LD_PRELOAD")
    source, library = folder / "wrong.cpp", folder / "wrong.so"
    source.write_text(_SOURCE.replace("WRONG", wrong))
    subprocess.run([command, "-shared", "-fPIC", "-w", str(source), "-o", str(library)], check=True)
    return os.environ | {"LD_PRELOAD": str(library), "XDG_CACHE_HOME": str(folder / "cache")}
