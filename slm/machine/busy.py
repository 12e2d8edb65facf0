"""Whether other programs used this machine's cores during a measurement, so that its figures can be marked."""

import os
from collections.abc import Sequence

from slm.machine.free_cores import FreeCores

BUSY = 0.1
"""A measurement is marked where other programs used at least this share of the cores."""


class Others:
    """Counts from its making on what other programs take. Child processes count as this one's once they have ended;
    running ones if ``own`` has their ids."""

    def __init__(self, own: Sequence[int] = ()) -> None:
        self._cores = FreeCores(own)
        affinity = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
        self._count = len(affinity)

    def share(self) -> float | None:
        """The share of the cores that they used since the last call, 0 to 1; None where it cannot be counted."""
        free = self._cores.read()
        return None if free is None else min(1.0, max(0.0, 1 - free / self._count))


def mark(share: float | None) -> str:
    """For a table's title: `` (BUSY: ...)`` where others used so much that speeds are too low; else empty."""
    if share is None or share < BUSY:
        return ""
    return f" (BUSY: other programs used {share:.0%} of the cores, so speeds are too low)"
