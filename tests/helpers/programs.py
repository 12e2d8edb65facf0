"""Commands of this project, each a process of its own that begins with everything imported.

Starting Python and importing torch takes seconds of a core; the standard library's fork server has both in memory and
starts a process in milliseconds. Such a process has its own environment and output, and can be stopped and killed like
any other.
"""

import importlib
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.helpers import REPOSITORY

os.environ.setdefault("OMP_NUM_THREADS", "1")
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "torch",
        "torch._dynamo",  # the first optimizer imports it
        "torch.distributed.run",
        "matplotlib.pyplot",
        "hydra",
        "tiktoken",
        "slm.model.checkpoint",
        "train.__main__",
        "train.distributed.launch",
        "train.trainer",
        "train.memory",
        "train.report.plot",
        "train.report.html",
    ]
)
_numbers = itertools.count(1)


class Program:
    """``python -m MODULE ARGV``, with the parts of ``subprocess.Popen`` that tests use.

    ``folder``: where its output goes. ``environment``: its variables, if not this process's. ``prepare``: a function
    of an importable module that it calls first. ``session``: it leads a group of its own, as a shell's foreground job
    does.
    """

    def __init__(
        self,
        module: str,
        argv: list[str],
        folder: Path,
        *,
        environment: dict[str, str] | None = None,
        prepare: Callable[[], None] | None = None,
        session: bool = False,
    ) -> None:
        stem = f".{module}-{next(_numbers)}"
        self._out, self._err = folder / f"{stem}.out", folder / f"{stem}.err"
        main = "train.__main__" if module == "train" else module
        environment = dict(os.environ if environment is None else environment)
        self.process = CONTEXT.Process(
            target=_child, args=(main, argv, str(self._out), str(self._err), environment, prepare, session)
        )
        self.process.start()
        self.pid: int = self.process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code; minus the signal's number where one ended the process; None while it runs."""
        return self.process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self.process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.process.name, timeout or 0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end; what was written to both outputs."""
        self.wait(timeout)
        return self.out, self.err

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.process.kill()

    @property
    def out(self) -> str:
        return self._out.read_text() if self._out.exists() else ""

    @property
    def err(self) -> str:
        return self._err.read_text() if self._err.exists() else ""


def _child(
    main: str,
    argv: list[str],
    out: str,
    err: str,
    environment: dict[str, str],
    prepare: Callable[[], None] | None,
    session: bool,
) -> None:
    if session:
        os.setsid()
    for number, path in ((1, out), (2, err)):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, number)
        os.close(handle)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # the fork server's
    os.chdir(REPOSITORY)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdout.reconfigure(line_buffering=True)
    if prepare is not None:
        prepare()
    from slm import cli

    cli.run(importlib.import_module(main).main, argv)
