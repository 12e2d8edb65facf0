"""The machine that a measurement was made on, as a record for JSON files and final lines."""

import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from slm.data.storage import fingerprint
from slm.machine.hardware import n_threads

VERSIONED = ("torch", "llama-cpp-python", "gguf", "tokenizers", "tiktoken", "datasets", "numpy")
"""A measurement depends on the versions of these packages."""


def cpu_name() -> str:
    """The processor's name, as the operating system reports it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def sources_fingerprint() -> str:
    """Changes with the training kernels' source: what was measured with others does not hold for them."""
    folder = Path(__file__).resolve().parents[1] / "kernels"
    files = sorted(path for path in folder.rglob("*") if path.suffix in (".cpp", ".h"))
    return fingerprint([path.read_bytes() for path in files])


def machine_record() -> dict[str, Any]:
    """Where a measurement was made: processor, usable cores, memory (GiB), system, and versions that matter."""
    versions = {}
    for package in VERSIONED:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "cpu": cpu_name(),
        "cores": n_threads(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": versions,
    }
