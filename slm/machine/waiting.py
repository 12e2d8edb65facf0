"""How OpenMP's threads wait for each other: awake while the cores are free, asleep soon where other programs want them.

A training step has hundreds of barriers. A thread that sleeps at one has to be woken by the system, which takes longer
than most of these waits. A thread that waits awake keeps its core from a program that has something to do. So the
threads of a training process wait awake, and a watcher lets them sleep while other programs want the cores.

Tested in tests/slm/machine/test_waiting.py.
"""

import ctypes
import importlib.util
import os
import time
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

from slm.machine.free_cores import FreeCores, fewer_threads
from slm.machine.hardware import SPINS_VARIABLE, compute_threads, share_cores, waits_as_told

LONG = 1_000_000
"""Turns of a thread that waits awake: tens of milliseconds, longer than any wait within a step."""
LOOK_SECONDS = 0.25
QUIET_LOOKS = 4
"""The threads wait awake again after this many looks at free cores, one after the other."""


def wait_awake(processes: int = 1) -> None:
    """Let this process's threads wait awake where no other program wants the cores. Call before torch is imported.

    They sleep soon (``share_cores``) where several ``processes`` train together, which may share cores, where the
    user's environment says how threads wait, where torch comes without libgomp (macOS), and where the system does not
    count the cores' time. Processes that this one starts do so, too, unless they call this function themselves.
    """
    cores = FreeCores()
    if processes == 1 and not waits_as_told() and cores.can_count and (libgomp := _load_libgomp()):
        watcher = Watcher(libgomp, compute_threads())
        Thread(target=_watch, args=(watcher, cores), name="watch of the cores", daemon=True).start()
    share_cores()


class SleepingTeam:
    """A second team of OpenMP threads, all asleep, until ``end``.

    With it libgomp manages more threads than there are processors, and lets every thread that waits sleep after 100
    turns (``gomp_throttled_spin_count_var`` in libgomp's wait.h). A Python thread holds the team and takes it along
    when it ends.
    """

    def __init__(self, libgomp: ctypes.CDLL) -> None:
        self._ended = Event()
        self._thread = Thread(target=self._hold, args=(libgomp,), name="sleeping team", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Let the process's threads wait awake again."""
        self._ended.set()
        self._thread.join()

    def _hold(self, libgomp: ctypes.CDLL) -> None:
        harmless = ctypes.cast(libgomp.omp_get_thread_num, ctypes.c_void_p)  # each thread calls it once
        libgomp.GOMP_parallel(harmless, None, ctypes.c_uint(libgomp.omp_get_num_procs() + 1), ctypes.c_uint(0))
        self._ended.wait()


class Watcher:
    """Starts the sleeping team while other programs want the cores of ``threads`` threads, and ends it afterwards."""

    def __init__(self, libgomp: ctypes.CDLL, threads: int) -> None:
        self._libgomp, self._threads = libgomp, threads
        self._team: SleepingTeam | None = None
        self._quiet = 0

    def look(self, free: float | None) -> None:
        """``free``: cores that others have left to this process since the last look; None: unknown."""
        self._quiet = self._quiet + 1 if free is not None and fewer_threads(free) >= self._threads else 0
        if self._quiet == 0 and self._team is None:
            self._team = SleepingTeam(self._libgomp)
        elif self._quiet >= QUIET_LOOKS and self._team is not None:
            self._team.end()
            self._team = None


def _watch(watcher: Watcher, cores: FreeCores) -> None:
    while True:
        time.sleep(LOOK_SECONDS)
        watcher.look(cores.read())


def _load_libgomp() -> ctypes.CDLL | None:
    """The libgomp that torch will use, set to wait awake; None where torch brings none."""
    spec = importlib.util.find_spec("torch")
    folders = [Path(each) / "lib" for each in spec.submodule_search_locations or ()] if spec else []
    os.environ[SPINS_VARIABLE] = str(LONG)  # which libgomp reads as it is loaded
    try:
        for path in sorted(path for folder in folders for path in folder.glob("libgomp*.so*")):
            with suppress(OSError, AttributeError):
                libgomp = ctypes.CDLL(str(path))
                if libgomp.GOMP_parallel and libgomp.omp_get_thread_num and libgomp.omp_get_num_procs:
                    return libgomp
        return None
    finally:
        del os.environ[SPINS_VARIABLE]  # the user has not set it: ``share_cores`` will
