"""How the cores of this machine belong together: SMT siblings, fast and slow cores, NUMA nodes.

Read from Linux's ``/sys``; where that is missing every usable CPU counts as one core. Nothing is cached and
every function takes the root of the tree, so that a made-up machine is as good as a real one.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

SYS = Path("/sys")
SLOW_BELOW = 0.85
"""A core below this share of the fastest one's capacity (or clock) is a slow one. Favoured cores of one kind differ
by less, efficiency cores by more."""


@dataclass(frozen=True)
class Core:
    """A physical core, as far as this process may use it."""

    cpus: tuple[int, ...]
    """Its logical CPUs that are in the affinity mask: one, or several SMT siblings."""
    package: int
    node: int
    """NUMA node."""
    fast: bool
    """False for the efficiency cores of a hybrid processor."""


@dataclass(frozen=True)
class Topology:
    """The usable cores, those of one NUMA node and package together."""

    cores: tuple[Core, ...]

    @property
    def cpus(self) -> int:
        """Logical CPUs in the mask."""
        return sum(len(core.cpus) for core in self.cores)

    @property
    def smt(self) -> bool:
        """Whether some core appears with more than one logical CPU."""
        return any(len(core.cpus) > 1 for core in self.cores)

    @property
    def hybrid(self) -> bool:
        """Whether there are slow cores next to fast ones."""
        return len({core.fast for core in self.cores}) > 1

    @property
    def fast_cores(self) -> tuple[Core, ...]:
        """The cores that matrix products should run on: all of them where all are alike."""
        return tuple(core for core in self.cores if core.fast)

    @property
    def nodes(self) -> tuple[int, ...]:
        """NUMA nodes with usable cores."""
        return tuple(sorted({core.node for core in self.cores}))


def read(sys: Path = SYS, allowed: Iterable[int] | None = None) -> Topology:
    """The topology under ``sys`` of the logical CPUs ``allowed`` (default: this process's affinity mask)."""
    cpus = sorted(usable_cpus() if allowed is None else allowed)
    nodes = _numa_nodes(sys)
    slow = _slow_cpus(sys, cpus)
    siblings: dict[tuple[int, ...], list[int]] = {}
    for cpu in cpus:
        siblings.setdefault(_thread_siblings(sys, cpu), []).append(cpu)
    cores = [
        Core(
            cpus=tuple(group),
            package=_number(_cpu(sys, group[0]) / "topology/physical_package_id", 0),
            node=nodes.get(group[0], 0),
            fast=group[0] not in slow,
        )
        for group in siblings.values()
    ]
    return Topology(tuple(sorted(cores, key=lambda core: (core.node, core.package, core.cpus))))


def usable_cpus() -> set[int]:
    """Logical CPUs in this process's affinity mask; all of them where the system has no masks."""
    try:
        return os.sched_getaffinity(0)
    except AttributeError:  # macOS
        return set(range(os.cpu_count() or 1))


def divide(cores: Sequence[Core], parts: int) -> list[tuple[Core, ...]]:
    """``cores`` in ``parts`` runs of neighbours that do not overlap and are as even as possible.

    A part keeps to one NUMA node where the numbers allow it, since neighbours in a ``Topology`` share theirs.
    With fewer cores than parts, the later parts share a core with another one.
    """
    assert parts >= 1
    assert cores
    if len(cores) < parts:
        return [(cores[part % len(cores)],) for part in range(parts)]
    edges = [len(cores) * part // parts for part in range(parts + 1)]
    return [tuple(cores[a:b]) for a, b in pairwise(edges)]


def parse_list(text: str) -> list[int]:
    """Numbers of a kernel list such as ``0-3,8,10-11``."""
    numbers: list[int] = []
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            numbers += range(int(first), int(last or first) + 1)
    return numbers


def _cpu(sys: Path, cpu: int) -> Path:
    return sys / f"devices/system/cpu/cpu{cpu}"


def _thread_siblings(sys: Path, cpu: int) -> tuple[int, ...]:
    for name in ("core_cpus_list", "thread_siblings_list"):  # the newer name first
        numbers = _numbers(_cpu(sys, cpu) / "topology" / name)
        if cpu in numbers:
            return tuple(numbers)
    return (cpu,)


def _numa_nodes(sys: Path) -> dict[int, int]:
    """Logical CPU to NUMA node; empty where the system does not say."""
    found = {}
    for path in sorted(sys.glob("devices/system/node/node[0-9]*/cpulist")):
        for cpu in _numbers(path):
            found[cpu] = int(path.parent.name.removeprefix("node"))
    return found


def _slow_cpus(sys: Path, cpus: Sequence[int]) -> set[int]:
    """The CPUs of ``cpus`` that are much slower than the fastest of them; empty where all are alike or unknown."""
    atoms = set(_numbers(sys / "devices/cpu_atom/cpus")).intersection(cpus)  # Intel's efficiency cores
    if atoms:
        return atoms if len(atoms) < len(cpus) else set()
    for name in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        speeds = {cpu: _number(_cpu(sys, cpu) / name, 0) for cpu in cpus}
        if cpus and all(speeds.values()):
            fastest = max(speeds.values())
            return {cpu for cpu, speed in speeds.items() if speed < SLOW_BELOW * fastest}
    return set()


def _numbers(path: Path) -> list[int]:
    try:
        return parse_list(path.read_text())
    except (OSError, ValueError):
        return []


def _number(path: Path, otherwise: int) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return otherwise
