"""llama.cpp's compute backends, where a build keeps them in separate libraries.

An ordinary build holds one CPU backend, compiled for the processor that it was built on. A build for other machines
(``GGML_BACKEND_DL=ON``, ``GGML_CPU_ALL_VARIANTS=ON``, as in the Dockerfile) has one library per kind of processor, and
loads the best of them only when it is asked to. llama-cpp-python does not ask.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path


def load_backends(ggml: ctypes.CDLL, folder: Path) -> int:
    """Loads the best CPU backend of ``folder`` if ``ggml`` has none yet. The number of backends afterwards.

    ``ggml``: llama.cpp's library ``libggml``. A build with its backend inside is left as it is.
    """
    count = ggml.ggml_backend_reg_count
    count.argtypes, count.restype = [], ctypes.c_size_t
    if count() == 0:
        load = ggml.ggml_backend_load_all_from_path
        load.argtypes, load.restype = [ctypes.c_char_p], None
        load(os.fsencode(folder))
    return int(count())
