"""Faults that an export is given before it starts, for tests."""

import contextlib
import ctypes
import functools
import importlib
import os
import resource
from pathlib import Path


def limit_file_size(bytes_: int) -> None:
    """No file that the process writes may be larger."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, bytes_))


def crash_in(module: str, function: str) -> None:
    """llama.cpp's ``function``, as ``module`` calls it, reads address 0."""
    setattr(importlib.import_module(module).C, function, lambda *_: ctypes.string_at(0))


def fill(disk: Path, leave: int) -> None:
    """Takes all room but ``leave`` bytes, at once."""
    with open(disk / "filler", "wb") as file:
        while True:
            facts = os.statvfs(disk)
            more = facts.f_bavail * facts.f_frsize - leave
            if more <= 0:
                return
            # Somebody else may have taken some of it since.
            with contextlib.suppress(OSError):
                os.posix_fallocate(file.fileno(), 0, file.seek(0, os.SEEK_END) + more)


def fill_before_quantizing(disk: Path, leave: int) -> None:
    """The disk is full when llama.cpp begins to write: a small file would be finished before another process could."""
    import slm.llama.quantize

    true_quantize = slm.llama.quantize.quantize

    @functools.wraps(true_quantize)
    def quantize(*arguments, **options):
        fill(disk, leave)
        return true_quantize(*arguments, **options)

    slm.llama.quantize.quantize = quantize
