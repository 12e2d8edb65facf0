"""llama.cpp's AMX tiles in a process in which others use tiles, too.

llama.cpp sets a thread's tiles once, and relies on them from then on (ggml's amx/mmq.cpp). PyTorch's bf16 products
(oneDNN) set other tiles in the same threads and release them. After this, llama.cpp's next quantized product is
an illegal instruction. So the tiles are kept after each batch, and set again before the next one (tiles.cpp).
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from pathlib import Path

from slm.llama.log import build_features
from slm.machine import cpp_build

_FLAGS = ("-O2", "-fopenmp", "-shared", "-fPIC", "-std=c++17")
_local = threading.local()
"""Thread-local ``kept``: the number of worker threads in which tiles have been kept."""


def set_again(n_threads: int) -> None:
    """Before a batch that ``n_threads`` threads compute, this one and others that work for it."""
    if _torch_is_here() and (library := _library()) is not None:
        library.slm_set_tiles(n_threads)


def keep(n_threads: int) -> None:
    """After it. A process without PyTorch needs to do so once only: PyTorch may come later."""
    needed = _torch_is_here() or n_threads > getattr(_local, "kept", 0)
    if needed and (library := _library()) is not None and library.slm_keep_tiles(n_threads):
        _local.kept = n_threads


def _torch_is_here() -> bool:
    return "torch" in sys.modules


@functools.cache
def _library() -> ctypes.CDLL | None:
    """None where llama.cpp uses no tiles. Without a compiler it is None, too: then bf16 and GGUF do not mix."""
    if "AMX_INT8" not in build_features():
        return None
    try:
        source = Path(__file__).with_name("tiles.cpp")
        return ctypes.CDLL(str(cpp_build.build([source], _FLAGS, what="the keeper of llama.cpp's tiles")))
    except (RuntimeError, OSError):
        return None
