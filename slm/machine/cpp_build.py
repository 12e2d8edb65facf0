"""C++ of ours compiled for this processor, once: a library is cached under a hash of everything it stands on."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from data.storage import cache_home


def compiler() -> str | None:
    """The C++ compiler: ``CXX`` where that is a g++, else g++. clang++ would bring a second OpenMP along."""
    named = os.environ.get("CXX", "")
    return shutil.which(named) if "g++" in Path(named).name and shutil.which(named) else shutil.which("g++")


def cpu_flags() -> frozenset[str]:
    """The processor's features as the kernel lists them; empty where it does not."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("flags"):
                return frozenset(line.split(":", 1)[1].split())
    except OSError:
        pass
    return frozenset()


def cache_dir() -> Path:
    """Where built libraries are kept."""
    return cache_home() / "kernels"


def build(sources: Sequence[Path], flags: Sequence[str], *, headers: Sequence[Path] = (), what: str) -> Path:
    """The library's path; compiled where it is not there. RuntimeError with the compiler's words where that fails.

    ``what``: what it is, for that message.
    """
    command = compiler()
    if command is None:
        raise RuntimeError("there is no C++ compiler")
    # Not its version, which takes a process to ask for: another one is another file.
    found = os.stat(command)
    identity = f"{os.path.realpath(command)} {found.st_size} {found.st_mtime_ns}"
    key = hashlib.sha256("\n".join([identity, *flags, *sorted(cpu_flags())]).encode())
    for path in (*headers, *sources):
        key.update(path.read_bytes())
    library = cache_dir() / f"{key.hexdigest()[:24]}.so"
    if library.exists():
        return library
    # Several processes may build at once: each writes its own file, the last rename wins, all are the same.
    fresh = library.with_name(f"{library.name}.{os.getpid()}")
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        done = subprocess.run([command, *flags, *map(str, sources), "-o", str(fresh)], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{command} could not build {what}: {done.stderr.strip()[:300]}")
        fresh.replace(library)
    except OSError as error:
        raise RuntimeError(f"cannot keep {what} in {library.parent}: {error.strerror}") from None
    finally:
        fresh.unlink(missing_ok=True)
    return library
