"""What llama.cpp says: its log, which is captured, and the processor features it was built with.

Importing this module starts llama.cpp's backend, so every module that calls llama.cpp imports it first.
``SLM_LLAMA_LOG=1`` also prints the log to stderr.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections import deque
from collections.abc import Iterator

import llama_cpp.llama_cpp as C

_WARN, _ERROR, _CONT = 3, 4, 5
_log: deque[tuple[int, str]] = deque(maxlen=20_000)
_log_to_stderr = os.environ.get("SLM_LLAMA_LOG", "") not in ("", "0")


@C.llama_log_callback
def _on_log(level: int, text: bytes, _user: object) -> None:
    line = text.decode("utf-8", errors="replace")
    if _log_to_stderr:
        sys.stderr.write(line)
    if level == _CONT and _log:
        last_level, last = _log[-1]
        _log[-1] = (last_level, last + line)
    else:
        _log.append((level, line))


C.llama_log_set(_on_log, ctypes.c_void_p(0))
C.llama_backend_init()


def clear_log() -> None:
    """Forgets llama.cpp's lines, so that ``last_error`` speaks of what comes."""
    _log.clear()


def last_error() -> str:
    """The cause, not the consequence: the first error line since the log was last cleared."""
    errors = [text.strip() for level, text in _log if level == _ERROR and text.strip()]
    return errors[0] if errors else "no reason given"


def log_lines() -> Iterator[str]:
    """The log's lines since it was last cleared, empty ones left out."""
    for _, text in _log:
        yield from (line.rstrip() for line in text.splitlines() if line.strip())


def build_features() -> list[str]:
    """What llama.cpp was built with and finds on this processor, for example ``AVX2`` and ``AVX512_BF16``."""
    words = C.llama_print_system_info().decode().replace("|", ":").split(":")
    pairs = [word.split("=") for word in words if "=" in word]
    return [name.strip() for name, value in pairs if value.strip() not in ("", "0")]
