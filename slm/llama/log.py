"""What llama.cpp says: its log, which is captured, and the processor features it was built with.

Importing this module starts llama.cpp's backend, so every module that calls llama.cpp imports it first.
``SLM_LLAMA_LOG=1`` also prints the log to stderr.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import llama_cpp.llama_cpp as C

from slm.llama.backends import load_backends

_ERROR, _CONTINUED = 4, 5


class _Level(ctypes.c_int):
    """A line's level. ctypes makes a new object for each line because this is a subclass, so that every line is
    another key."""

    __hash__ = object.__hash__  # ctypes' numbers have none


_lines: dict[_Level, bytes] = {}
"""llama.cpp's lines in order, each under its level."""


def _print_and_keep(level: _Level, text: bytes) -> None:
    sys.stderr.write(text.decode("utf-8", errors="replace"))
    _lines[level] = text


# llama.cpp calls back from the middle of native code, which no exception can pass: ctypes prints it and drops it.
# It happens to Ctrl-C, too, because Python runs signal handlers at the first instruction of a Python function. So
# no Python function is called here: the dictionary's own method keeps the line, and the handler runs when the native
# call has returned. (Printing needs a Python function: with SLM_LLAMA_LOG=1 an interrupt can still be lost.)
# llama.cpp passes a third argument, which C's calling convention lets us leave out.
_callback = ctypes.CFUNCTYPE(None, _Level, ctypes.c_char_p)(
    _print_and_keep if os.environ.get("SLM_LLAMA_LOG", "") not in ("", "0") else _lines.__setitem__
)
C.llama_log_set(ctypes.cast(_callback, C.llama_log_callback), ctypes.c_void_p(0))
load_backends(C._lib, Path(C._base_path))
C.llama_backend_init()

clear_log = _lines.clear
"""Forgets llama.cpp's lines, so that ``first_error`` is about what comes next."""


def first_error() -> str:
    """The first error line since the log was last cleared. It names the cause, the later ones the consequences."""
    errors = [text.strip() for level, text in _messages() if level == _ERROR and text.strip()]
    return errors[0] if errors else "no reason given"


def log_lines() -> list[str]:
    """The log's lines since it was last cleared, empty ones left out."""
    return [line.rstrip() for _, text in _messages() for line in text.splitlines() if line.strip()]


def _messages() -> list[tuple[int, str]]:
    """Level and text of each message, continued ones joined."""
    messages: list[tuple[int, str]] = []
    for key, raw in list(_lines.items()):
        level, text = key.value, raw.decode("utf-8", errors="replace")
        if level == _CONTINUED and messages:
            level, text = messages[-1][0], messages.pop()[1] + text
        messages.append((level, text))
    return messages


def build_features() -> list[str]:
    """What llama.cpp was built with and finds on this processor, for example ``AVX2`` and ``AVX512_BF16``."""
    words = C.llama_print_system_info().decode().replace("|", ":").split(":")
    pairs = [word.split("=") for word in words if "=" in word]
    return [name.strip() for name, value in pairs if value.strip() not in ("", "0")]
