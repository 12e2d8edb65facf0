"""The signal that ended a process is told from its exit status."""

import subprocess
import sys

import pytest

from slm.machine.crashes import CRASHES, ended_by


@pytest.mark.parametrize(
    ("name", "crash"), [("SIGSEGV", True), ("SIGILL", True), ("SIGTERM", False), ("SIGKILL", False)]
)
def test_a_signal_is_named(name, crash):
    code = f"import os, signal; os.kill(os.getpid(), signal.{name})"
    status = subprocess.run([sys.executable, "-c", code], check=False).returncode
    assert ended_by(status) == name
    assert (name in CRASHES) == crash


@pytest.mark.parametrize("status", [0, 1, 2, 127])
def test_a_process_that_ends_by_itself_has_none(status):
    assert ended_by(status) is None
