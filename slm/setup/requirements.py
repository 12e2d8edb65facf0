"""What the installation needs of the machine, looked for before the first download: one line for each missing thing."""

import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from slm.setup import index

VENV_GB = 3.5
"""Room for the virtual environment: 2.5 GB with the tools of development, and what pip unpacks on the way."""
BUILD_GB = 1.0
"""Room for temporary files, most of them of the build of llama.cpp."""
CMAKE_WHEELS = ("x86_64", "amd64", "aarch64", "arm64")
"""Processors for which PyPI has CMake and Ninja: the build fetches them there where they are not installed."""
_PROGRAMS = {
    "C": (("CC", "cc", "gcc", "clang"), ".c", "#include <stdio.h>\nint main(void) { return 0; }\n"),
    "C++": (("CXX", "c++", "g++", "clang++"), ".cpp", "#include <vector>\nint main() { return 0; }\n"),
}


def find_problems(venv: Path, *, new: bool, uv: str | None) -> list[str]:
    """A line for each thing that is missing, all at once.

    ``new``: the environment or llama.cpp has yet to be made. ``uv``: the path of uv, where it is installed.
    """
    found = []
    writable = _nearest_folder(venv)
    if not may_write(writable):
        found.append(f"{writable} cannot be written by this user: {venv} is made there; use another checkout")
    if new:
        found += [*missing_compilers(), *missing_cmake(), *too_little_room(venv)]
        if not uv:
            found += missing_venv()
    found += index.unreachable_index(uv=bool(uv))
    return found


def missing_compilers() -> Iterator[str]:
    """llama.cpp is compiled for this processor. A compiler has to work, with the headers of its library."""
    for language, (names, suffix, text) in _PROGRAMS.items():
        package = to_install(
            apt="build-essential", dnf="gcc-c++" if language == "C++" else "gcc", mac="xcode-select --install"
        )
        named = shlex.split(os.environ.get(names[0], ""))
        command = shutil.which(named[0]) if named else next(filter(None, map(shutil.which, names[1:])), None)
        if command is None:
            missing = f"{names[0]}={named[0]} does not exist" if named else f"there is no {language} compiler"
            yield f"{missing}: {package}"
            continue
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, f"try{suffix}")
            source.write_text(text)
            try:
                done = subprocess.run(
                    [command, *named[1:], str(source), "-o", str(source.with_suffix(".out"))],
                    capture_output=True,
                    text=True,
                    timeout=60,
                )
                complaint = done.stderr if done.returncode else ""
            except (OSError, subprocess.TimeoutExpired) as error:
                complaint = str(error)
        if complaint:
            first = next((line for line in complaint.splitlines() if "error" in line.lower()), complaint)
            yield f"the {language} compiler {command} does not work ({' '.join(first.split())[:120]}): {package}"


def missing_cmake() -> Iterator[str]:
    """CMake, where PyPI has none for this processor."""
    if shutil.which("cmake") is None and platform.machine().lower() not in CMAKE_WHEELS:
        package = to_install(apt="cmake ninja-build", dnf="cmake ninja-build", mac="brew install cmake ninja")
        yield f"there is no cmake, and PyPI has none for {platform.machine()}: {package}"


def missing_venv() -> Iterator[str]:
    """Debian splits Python's venv and ensurepip off."""
    if any(importlib.util.find_spec(name) is None for name in ("venv", "ensurepip")):
        version = ".".join(platform.python_version_tuple()[:2])
        package = to_install(apt=f"python{version}-venv", dnf="python3", mac="brew install python")
        yield f"Python has no venv with pip: {package} (or install uv, which needs neither)"


def too_little_room(venv: Path) -> Iterator[str]:
    """Room on the disks of the environment and of temporary files."""
    folders = [(_nearest_folder(venv), VENV_GB, str(venv)), (Path(tempfile.gettempdir()), BUILD_GB, "temporary files")]
    if os.stat(folders[0][0]).st_dev == os.stat(folders[1][0]).st_dev:
        folders = [(folders[0][0], VENV_GB + BUILD_GB, f"{venv} and temporary files")]
    for folder, needed, what in folders:
        free = shutil.disk_usage(folder).free / 1e9
        if free < needed:
            yield f"the disk of {folder.absolute()} has {free:.1f} GB free: {what} need {needed:.1f} GB"


def to_install(*, apt: str, dnf: str, mac: str) -> str:
    """How to install a package here, or on each system where this one is not known."""
    lines = {"apt": f"apt install {apt}", "dnf": f"dnf install {dnf}", "brew": mac}
    if platform.system() == "Darwin":
        return lines["brew"]
    known = [lines[name] for name in ("apt", "dnf") if shutil.which(name, path=f"{os.defpath}:/usr/sbin")]
    if known:
        return known[0]
    return f"{lines['apt']} (Debian, Ubuntu), {lines['dnf']} (Fedora) or {lines['brew']} (macOS)"


def _nearest_folder(path: Path) -> Path:
    """The path itself, or the nearest folder above that exists."""
    path = path.absolute()
    return next(each for each in (path, *path.parents) if os.path.isdir(each))


def may_write(folder: Path) -> bool:
    """Whether this process may make files in a folder, or in the nearest one above it that exists."""
    return os.access(_nearest_folder(folder), os.W_OK, effective_ids=os.access in os.supports_effective_ids)
