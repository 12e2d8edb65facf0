"""Faults that an export is given before it starts, for tests."""

import ctypes
import importlib
import resource


def limit_file_size(bytes_: int) -> None:
    """No file that the process writes may be larger."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, bytes_))


def crash_in(module: str, function: str) -> None:
    """llama.cpp's ``function``, as ``module`` calls it, reads address 0."""
    setattr(importlib.import_module(module).C, function, lambda *_: ctypes.string_at(0))
