"""The kernel's counters are written to a folder of the test's own, so what they show is exact; one test reads the real
ones."""

import os
import subprocess
import sys
import time

import psutil
import pytest

from slm.machine import free_cores
from slm.machine.free_cores import FreeCores, ThreadCount

TICKS = os.sysconf("SC_CLK_TCK")
OTHER = 4711


class Machine:
    """Two cores whose counters a test advances, with their own clock."""

    def __init__(self, proc, monkeypatch):
        self.proc, self.clock, self.own_s = proc, 100.0, 5.0
        self.cores = {0: [0] * 10, 1: [0] * 10}
        self.other = self.its_children = 0
        (proc / str(OTHER)).mkdir()
        monkeypatch.setattr(free_cores.time, "monotonic", lambda: self.clock)
        monkeypatch.setattr(free_cores.resource, "getrusage", self._usage)
        monkeypatch.setattr(free_cores.os, "sched_getaffinity", lambda _: set(self.cores), raising=False)
        self.write()

    def _usage(self, who):
        used = self.own_s if who == free_cores.resource.RUSAGE_SELF else 0.0
        return type("Usage", (), {"ru_utime": used, "ru_stime": 0.0})

    def write(self):
        lines = [f"cpu{n} {' '.join(map(str, values))}" for n, values in self.cores.items()]
        # A core that this process may not use, and what follows the cores.
        lines = ["cpu 9 9 9 9", *lines, f"cpu2 0 0 0 {int(self.clock * TICKS)} 0 0 0 0 0 0", "intr 1 2 3", "ctxt 4"]
        (self.proc / "stat").write_text("\n".join(lines) + "\n")
        fields = ["S", *["0"] * 10, str(self.other), "0", str(self.its_children), "0", "20"]
        (self.proc / str(OTHER) / "stat").write_text(f"{OTHER} (a (b) c) {' '.join(fields)}\n")

    def passes(self, seconds, *, idle, own=0.0, other=0.0, its_children=0.0, iowait=0.0):
        """``idle``, ``own``, ``other``, ``its_children`` and ``iowait``: cores, on average. The rest is somebody
        else's."""
        self.clock += seconds
        self.own_s += own * seconds
        self.other += int(other * seconds * TICKS)
        self.its_children += int(its_children * seconds * TICKS)
        self.cores[0][3] += int(idle * seconds * TICKS)
        self.cores[1][4] += int(iowait * seconds * TICKS)
        self.cores[1][0] += int((2 - idle - iowait) * seconds * TICKS)
        self.write()


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch)


def test_free_is_what_is_idle_or_ones_own(machine):
    cores = FreeCores([OTHER], proc=machine.proc)
    machine.passes(2, idle=2)
    assert cores.read() == pytest.approx(2)
    machine.passes(2, idle=0.5, own=1.5)
    assert cores.read() == pytest.approx(2)
    machine.passes(2, idle=0.25, own=1, other=0.25, iowait=0.5)
    assert cores.read() == pytest.approx(2), "the other process belongs to this one, and a disk needs no core"
    machine.passes(2, idle=0.25, other=0.25, its_children=1.5)
    assert cores.read() == pytest.approx(2), "a process that builds kernels is not busy with other programs"
    machine.passes(2, idle=0, own=1.25)
    assert cores.read() == pytest.approx(1.25)
    assert not cores.taken(2), "nothing has happened since"
    machine.passes(2, idle=0, own=1.25)
    assert cores.taken(2)


def test_counters_that_stand_still_or_are_missing_count_as_unknown(machine):
    cores = FreeCores([OTHER], proc=machine.proc)
    machine.clock += 1
    assert cores.read() is None
    (machine.proc / "stat").unlink()
    assert cores.read() is None
    machine.passes(1, idle=1)
    assert cores.read() is None, "the reading before is missing"
    machine.passes(1, idle=1)
    assert cores.read() == pytest.approx(1)
    assert not FreeCores([12345678], proc=machine.proc).taken(2)


def test_threads_follow_the_free_cores(machine):
    count = ThreadCount(2, FreeCores(proc=machine.proc))

    def after(free):
        machine.passes(0.3, idle=0, own=free)
        return count.update()

    assert after(2.0) == 2
    assert after(1.3) == 1, "two spinning threads leave a busy process two thirds of a core: that is enough to act"
    assert after(1.0) == 1
    assert after(1.9) == 1, "it may be a pause"
    assert after(1.0) == 1
    assert [after(1.9), after(1.9)] == [1, 2]
    assert [after(1.6), after(1.6)] == [2, 2], "a program that needs less than half a core"
    assert [after(0.2), after(1.6), after(1.6), after(1.6)] == [1, 1, 1, 1], "no flicker between the two"
    machine.passes(0.3, idle=0, own=2)
    (machine.proc / "stat").unlink()
    assert count.update() == 2, "unknown: as configured"


def test_after_a_pause_one_reading_is_enough(machine):
    """A program has ended while nothing was computed: the next request has all cores at once."""
    count = ThreadCount(2, FreeCores(proc=machine.proc))
    machine.passes(0.3, idle=0, own=1)
    assert count.update() == 1
    machine.passes(0.3, idle=0, own=2)
    assert count.update() == 1
    machine.passes(0.3, idle=0, own=1)
    assert count.update() == 1
    machine.passes(5, idle=2)
    assert count.update() == 2


def test_more_cores_than_threads(machine):
    machine.cores = {n: [0] * 10 for n in range(8)}
    count = ThreadCount(4, FreeCores(proc=machine.proc))
    found = []
    for free in (7.0, 4.0, 3.9, 3.2, 2.2, 8.0, 8.0):
        count.now = count.after(free)
        found.append(count.now)
    assert found == [4, 4, 4, 3, 2, 2, 4]


def test_counting_is_done_four_times_a_second(machine, monkeypatch):
    count = ThreadCount(2, FreeCores(proc=machine.proc))
    readings = []
    monkeypatch.setattr(FreeCores, "read", lambda self: readings.append(machine.clock))
    for _ in range(100):
        machine.clock += 0.01
        count.update()
    assert 3 <= len(readings) <= 4


@pytest.mark.skipif(sys.platform != "linux", reason="Linux counts a process's cores")
def test_a_busy_process_takes_a_core_from_this_machine():
    """The real counters. Other tests may run, so only what must hold is checked: the child's time is not free, unless
    it is counted as one's own."""
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(0.3)
        without, with_child = FreeCores(), FreeCores([child.pid])
        used_before, began = sum(psutil.Process(child.pid).cpu_times()[:2]), time.monotonic()
        time.sleep(2)
        free, own = without.read(), with_child.read()
        used = (sum(psutil.Process(child.pid).cpu_times()[:2]) - used_before) / (time.monotonic() - began)
        assert used > 0
        assert 0 <= free <= len(os.sched_getaffinity(0)) + 0.1
        assert own - free == pytest.approx(used, abs=0.1)
    finally:
        child.kill()
        child.wait()
