"""How threads wait is set in a process before it imports torch, so each test has its own process."""

import os
import subprocess
import sys

import pytest

from slm.machine.hardware import SHARES_CORES, SPINS_VARIABLE, n_threads
from tests.helpers import REPOSITORY

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="libgomp, and Linux's counters of the cores' time")

SCRIPT = """
import sys, threading, time
from slm.machine import waiting

def names():
    return [each.name for each in threading.enumerate()]

def seconds_awake():
    '''Processor time of a second thread that has nothing to do, 20 times after a product.'''
    a = torch.ones(256, 256)
    a @ a
    before = time.process_time()
    for _ in range(20):
        a @ a
        time.sleep(0.01)
    return time.process_time() - before
"""
TEAM = """
libgomp = waiting._load_libgomp()
import torch
torch.set_num_threads(2)
watcher = waiting.Watcher(libgomp, 2)
watcher.look(2.0)
awake = seconds_awake()
for free in (1.3, 1.9):
    watcher.look(free)
assert "sleeping team" in names()
asleep = seconds_awake()
assert asleep < awake / 3, (awake, asleep)
for free in (2.0, 2.0, 1.0, 2.0, 2.0, 2.0):
    watcher.look(free)
    assert "sleeping team" in names(), "others may only have paused"
watcher.look(2.0)
assert "sleeping team" not in names()
assert seconds_awake() > asleep * 3
watcher.look(None)
assert "sleeping team" in names(), "unknown: as if others wanted the cores"
"""
STARTED = """
waiting.wait_awake()
import os, torch
print("watch of the cores" in names(), os.environ["GOMP_SPINCOUNT"], os.environ.get("OMP_WAIT_POLICY"))
"""
AGAIN = """
import subprocess
waiting.wait_awake()
code = "import threading; from slm.machine.waiting import wait_awake; wait_awake(); print(threading.active_count())"
subprocess.run([sys.executable, "-c", code], check=True)
"""


def _run(script: str, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in (SPINS_VARIABLE, SHARES_CORES)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT + script],
        env=environment | variables,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(n_threads() < 2, reason="with one core libgomp lets every team sleep")
def test_threads_wait_awake_until_others_want_the_cores():
    _run(TEAM)


def test_training_watches_the_cores():
    assert _run(STARTED) == "True 1000 None"


@pytest.mark.parametrize("told", [{"GOMP_SPINCOUNT": "77"}, {"OMP_WAIT_POLICY": "passive"}])
def test_what_the_user_says_wins(told):
    expected = f"False {told.get('GOMP_SPINCOUNT', '1000')} {told.get('OMP_WAIT_POLICY')}"
    assert _run(STARTED, **told) == expected


def test_a_process_that_measures_for_training_waits_like_it():
    """Its parent has set the variable for all that it starts: that is not the user's word."""
    assert _run(AGAIN) == "2", "the main thread, and the one that watches"
