"""This project's C++, compiled once for this processor and cached under a hash of all that a library is made from."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from slm.data.storage import cache_home, fsync

_LAUNCHERS = ("ccache", "sccache", "distcc", "icecc")


def compiler(*, gcc_only: bool = False) -> str | None:
    """The path of the C++ compiler, or None where there is none.

    This is the one that torch.compile takes: ``$CXX`` where that is set, else g++, else clang++. ``gcc_only`` leaves
    clang++ out, for libraries that share torch's OpenMP threads: torch brings GCC's runtime, and clang++ would load a
    second one. A ``$CXX`` that is not GCC's is then passed over. For ``CXX="ccache g++ -m64"`` it is ``g++``.
    """
    named = _named()
    if not gcc_only:
        return shutil.which(named or "g++") or shutil.which("clang++")
    name = Path(named).name
    return (shutil.which(named) if "g++" in name and "clang" not in name else None) or shutil.which("g++")


def _named() -> str:
    """The compiler in ``$CXX``, without a cache before it and options behind it; empty where none is named."""
    try:
        words = shlex.split(os.environ.get("CXX", ""))
    except ValueError:  # quotes that are not closed
        return ""
    return next((each for each in words if Path(each).name not in _LAUNCHERS), "")


def torch_compile_lacks() -> str | None:
    """What torch.compile lacks here, and what to install; None where it has all. Its loops are OpenMP's, in modules of
    Python's."""
    command, named = compiler(), os.environ.get("CXX", "")
    if command is None:
        return "there is no C++ compiler (apt install g++)"
    if named and shutil.which(named) is None:
        return f'there is no program CXX="{named}" (its name alone, without options)'
    with contextlib.suppress(OSError):
        tried = subprocess.run(
            [command, "-fopenmp", "-fsyntax-only", "-x", "c++", "-"],
            input="#include <omp.h>\n",
            capture_output=True,
            text=True,
        )
        if tried.returncode == 0:
            has_python = (Path(sysconfig.get_path("include")) / "Python.h").is_file()
            return None if has_python else "Python's headers are missing (apt install python3-dev)"
    return f"{Path(command).name} has no OpenMP here (apt install g++, or libomp-dev for clang++)"


def cpu_flags() -> frozenset[str]:
    """The processor's features as the kernel lists them; empty where it does not."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):  # on x86, on ARM
                return frozenset(line.split(":", 1)[1].split())
    except OSError:
        pass
    return frozenset()


def cache_dir() -> Path:
    """Where built libraries are kept."""
    return cache_home() / "kernels"


def build(
    sources: Sequence[Path], flags: Sequence[str], *, headers: Sequence[Path] = (), what: str, openmp: bool = True
) -> Path:
    """The library's path; compiled where it is not there. RuntimeError with the compiler's message where that fails.

    ``what`` names the library in that message. ``openmp``: it shares torch's threads, so that only GCC can build it.
    """
    command = compiler(gcc_only=openmp)
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
    fresh: Path | None = None
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with _alone(library):
            if library.exists():  # another process has built it meanwhile
                return library
            handle, name = tempfile.mkstemp(dir=library.parent, prefix=f"{library.name}.")
            os.close(handle)
            fresh = Path(name)
            done = subprocess.run(
                [command, *flags, *map(str, sources), "-o", str(fresh)], capture_output=True, text=True
            )
            if done.returncode:
                raise RuntimeError(f"{command} could not build {what}: {done.stderr.strip()[:300]}")
            fresh.chmod(0o755)
            fsync(fresh)  # an empty file in its place would stay for good
            fresh.replace(library)
    except OSError as error:
        raise RuntimeError(f"cannot keep {what} in {library.parent}: {error.strerror}") from None
    finally:
        if fresh is not None:
            with contextlib.suppress(OSError):
                fresh.unlink()
    return library


@contextlib.contextmanager
def _alone(library: Path) -> Iterator[None]:
    """No other process builds ``library`` meanwhile: it waits, where it would take a core for the same work.

    Without locks in the file system several may build at once: each has its own file, and all are the same.
    """
    lock = library.with_suffix(".lock")
    with lock.open("w") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)  # who still waits for it then finds the library
