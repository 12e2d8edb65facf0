"""How much memory there is for this process: the machine's, or its container's where that is less.

A container is limited by control groups ("cgroups"), and every group above the process's own may set a limit, too.
Version 2 has one tree of them, version 1 one for each resource; both may be mounted at once. A group counts the
files that it has read as memory in use. The kernel drops such pages when somebody needs the memory, so the pages
that were not used lately (``inactive_file``) count as available here, as they do in ``MemAvailable``.

https://docs.kernel.org/admin-guide/cgroup-v2.html#memory and .../cgroup-v1/memory.html
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")


@dataclass(frozen=True)
class _Version:
    """Where one version of control groups keeps its memory figures."""

    folder: str
    """The root of its tree, below the mount point."""
    controller: str
    """How lines of ``/proc/self/cgroup`` name the tree."""
    limit: str
    used: str
    inactive_files: str
    """The line of ``memory.stat``, with the groups below counted."""


VERSIONS = (
    _Version(".", "", "memory.max", "memory.current", "inactive_file"),
    _Version("memory", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def total_bytes(cgroup: Path = CGROUP, own: Path = OWN_GROUPS) -> int:
    """All the memory that this process and its children could ever have."""
    total = psutil.virtual_memory().total
    return min([total, *(limit for limit, _ in _limits(cgroup, own))])


def available_bytes(cgroup: Path = CGROUP, own: Path = OWN_GROUPS) -> int:
    """Memory that this process and its children may still take before something is swapped out or killed."""
    free = psutil.virtual_memory().available
    return max(0, min([free, *(limit - used for limit, used in _limits(cgroup, own))]))


def _limits(cgroup: Path, own: Path) -> Iterator[tuple[int, int]]:
    """Limit and used bytes of every group that limits this process, whichever version it belongs to."""
    for version in VERSIONS:
        for group in _groups(cgroup / version.folder, version, own):
            try:
                limit = int((group / version.limit).read_text())  # "max", no limit, is not a number
                used = int((group / version.used).read_text())
            except (OSError, ValueError):
                continue
            yield limit, used - _inactive_file_bytes(group, version)


def _groups(root: Path, version: _Version, own: Path) -> Iterator[Path]:
    """The process's own group and those above it, up to ``root``.

    Inside a container the path may be the one that the host sees, which does not exist here; the container's own
    group is then at the root.
    """
    path = _own_path(version, own)
    while path:
        yield root / path
        path = path.rpartition("/")[0]
    yield root


def _own_path(version: _Version, own: Path) -> str:
    """The process's group in this version's tree, without a leading slash; empty for the root or where unknown."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return ""
    for line in lines:  # hierarchy number:controllers:path
        _, controllers, path = line.split(":", 2)
        if version.controller in controllers.split(","):
            return path.strip("/") if ".." not in path.split("/") else ""  # outside of what is mounted here
    return ""


def _inactive_file_bytes(group: Path, version: _Version) -> int:
    try:
        stat = (group / "memory.stat").read_text()
    except OSError:
        return 0
    found = re.search(rf"^{version.inactive_files} (\d+)$", stat, re.MULTILINE)
    return int(found.group(1)) if found else 0
