"""Ranks that the launcher under test forks, where it would start Python and import torch for each: seconds of a core.

The launcher, torchrun's agent in it and the ranks' own program are the real ones, and so are processes, groups, signals
and exit codes. Ranks that begin with ``python -m`` belong to two tests in tests/train/test_distributed.py: one by
torchrun itself, one on two machines.
"""

import importlib
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

from slm import cli


def fork_ranks() -> None:
    """For ``Program(prepare=...)``: in this process, torchrun's agent forks the ranks."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler import SubprocessHandler

    SubprocessHandler._popen = lambda _, command, environment: _Rank(command, environment)


class _Rank:
    """``subprocess.Popen(command, env=environment, start_new_session=True)``, as far as torchrun's agent uses it."""

    def __init__(self, command: tuple[str, ...], environment: dict[str, str]) -> None:
        module = command.index("-m")
        ready, leads = os.pipe()
        self._process = multiprocessing.get_context("fork").Process(
            target=_run, args=(command[module + 1], list(command[module + 2 :]), environment, leads)
        )
        self._process.start()
        os.close(leads)
        os.read(ready, 1)  # its group is there, as it is when Popen returns
        os.close(ready)
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0)
        return self._process.exitcode


def _run(name: str, words: list[str], environment: dict[str, str], leads: int) -> None:
    os.setsid()
    os.write(leads, b"x")
    os.close(leads)
    for each in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(each, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if number > 2 and _is_socket(number):  # the launcher's store
            os.close(number)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    module = importlib.import_module(name)
    if hasattr(module, "__path__"):
        module = importlib.import_module(f"{name}.__main__")
    sys.argv = [name, *words]
    cli.run(module.main, words)


def _is_socket(number: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(number).st_mode)
    except OSError:  # the listing's own
        return False
