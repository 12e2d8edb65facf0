"""How many cores other programs leave to this one, and how many threads to compute with.

Threads that compute together wait for each other at every barrier, hundreds of times for a token. If another program
takes the core of one of them, all of them wait until the kernel gives it back: a token then takes ten to a thousand
times as long. One thread fewer than cores has nobody to wait for.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Sequence
from pathlib import Path

_EVERY_S = 0.25
"""The kernel counts in hundredths of a second, so shorter intervals would be too coarse."""
_FEWER = 0.5
"""A thread is given up where less than this part of its core is free. A program that needs less than half a core
costs less than a thread is worth."""
_MORE = 0.75
"""A thread is added where at least this part of another core is free."""
_READINGS_FOR_MORE = 2
"""In a row, or one reading over as much time, after a pause in which nothing was computed. Giving a core back late
costs little, and taking it too early much."""


class FreeCores:
    """Counts the cores that are idle, or used by this process and by ``others`` (process ids), and by those of their
    children that have ended.

    Only cores that this process may use count. Linux only: elsewhere ``read`` returns None.
    """

    def __init__(self, others: Sequence[int] = (), *, proc: Path = Path("/proc")) -> None:
        self._proc, self._others = proc, tuple(others)
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self._cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()
        self._last = self._sample()

    @property
    def can_count(self) -> bool:
        """Whether this system has the counters at all."""
        return self._last is not None

    def read(self) -> float | None:
        """Cores, on average since the last call (or since this object was made); None where they cannot be counted."""
        before, self._last = self._last, self._sample()
        if before is None or self._last is None:
            return None
        wall_s, idle_s, counted_s, own_s = (now - then for now, then in zip(self._last, before, strict=True))
        # Some sandboxes show counters that stand still.
        if wall_s <= 0 or counted_s < wall_s * len(self._cores) / 2:
            return None
        return (idle_s + own_s) / wall_s

    def taken(self, threads: int) -> bool:
        """Whether other programs have used cores that this many threads need, since the last reading."""
        free = self.read()
        return free is not None and fewer_threads(free) < threads

    def _sample(self) -> tuple[float, float, float, float] | None:
        """Seconds so far: of the clock, idle and counted in all on the cores together, and used by the processes."""
        try:
            idle_s, counted_s = self._of_cores()
            own_s = sum(map(self._of_process, self._others))
        except (OSError, ValueError, IndexError):
            return None
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
            used = resource.getrusage(who)
            own_s += used.ru_utime + used.ru_stime
        return time.monotonic(), idle_s, counted_s, own_s

    def _of_cores(self) -> tuple[float, float]:
        idle = counted = 0
        for line in (self._proc / "stat").read_text().splitlines():
            name, *values = line.split()
            if not name.startswith("cpu"):
                break
            if name != "cpu" and int(name[3:]) in self._cores:
                ticks = [int(value) for value in values[:8]]  # guests' time, which follows, is user time, too
                idle += ticks[3] + ticks[4]  # idle, and waiting for a disk
                counted += sum(ticks)
        return idle / self._ticks_per_s, counted / self._ticks_per_s

    def _of_process(self, pid: int) -> float:
        # The program's name may hold spaces and brackets. The 12th to 15th field after it are its user and system time,
        # and those of its children that have ended, such as compilers.
        fields = (self._proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / self._ticks_per_s


def fewer_threads(free: float) -> int:
    """Threads that this many free cores are enough for, none of them left waiting."""
    return max(1, int(free + 1 - _FEWER))


class ThreadCount:
    """How many of ``most`` threads to compute with at the moment, by the cores that are free."""

    def __init__(self, most: int, cores: FreeCores) -> None:
        self.most, self.now = most, most
        self._cores = cores
        self._read_at = time.monotonic()
        self._n_free_readings = 0

    def update(self) -> int:
        """The number for the next step, from 1 to ``most``. Cheap: the cores are counted four times a second."""
        now = time.monotonic()
        elapsed = now - self._read_at
        if elapsed >= _EVERY_S:
            self._read_at = now
            free = self._cores.read()
            self.now = self.most if free is None else self.after(free, n_readings=int(elapsed / _EVERY_S))
        return self.now

    def after(self, free: float, n_readings: int = 1) -> int:
        """The number that follows from a reading of the free cores, which counts as ``n_readings`` of usual length."""
        fewer = fewer_threads(free)
        more = int(free + 1 - _MORE)
        if fewer < self.now:
            self._n_free_readings = 0
            return fewer
        self._n_free_readings = self._n_free_readings + n_readings if more > self.now else 0
        if self._n_free_readings >= _READINGS_FOR_MORE:
            self._n_free_readings = 0
            return min(self.most, more)
        return self.now
