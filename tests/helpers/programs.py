"""Commands of this project, each its own process that begins with everything imported.

Starting Python and importing torch takes seconds of a core; the standard library's fork server has both in memory and
starts a process in milliseconds. Such a process has its own environment and output, and can be stopped and killed like
any other. The fork server that a server makes for its engines is forked, too.
"""

import contextlib
import importlib
import itertools
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from multiprocessing import util
from pathlib import Path
from typing import Any

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
        "slm.export.pipeline",
        "slm.serve.api.server",
        "slm.serve.engine.engine",
        "slm.serve.pool.model_files",
        "slm.serve.pool.model_pool",
        "slm.command.main",
        "slm.evaluate.evaluate",
        "slm.model.checkpoint",
        "slm.train.__main__",
        "slm.train.distributed.launch",
        "slm.train.trainer",
        "slm.train.memory",
        "slm.train.report.plot",
        "slm.train.report.html",
        "tests.helpers.warm",  # the last
    ]
)
_numbers = itertools.count(1)


class Program:
    """``python -m MODULE ARGV``, with the parts of ``subprocess.Popen`` that tests use.

    ``folder``: where its output goes. ``environment``: its variables, if not this process's. ``prepare``: a function
    of an importable module that it calls first. ``session``: it leads its own group, as a shell's foreground job
    does. ``cwd``: its current folder, if not the repository. ``log``: a file that gets both of its outputs instead.
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
        cwd: Path = REPOSITORY,
        log: Path | None = None,
        typed: str | None = None,
    ) -> None:
        stem = f".{module}-{next(_numbers)}"
        self._out, self._err = log or folder / f"{stem}.out", log or folder / f"{stem}.err"
        environment = dict(os.environ if environment is None else environment)
        given = None
        if typed is not None:
            given = str(folder / f"{stem}.in")
            Path(given).write_text(typed, encoding="utf-8")
        outputs = (str(self._out), str(self._err))
        self.process = CONTEXT.Process(
            target=_child, args=(module, argv, outputs, environment, prepare, session, str(cwd), given)
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


def run(module: str, argv: list[str], folder: Path, *, status: int = 0, timeout: float = 120, **options: Any) -> str:
    """A program run to its end, which must be this exit code: what it printed, or its errors where that is not 0."""
    program = Program(module, argv, folder, **options)
    try:
        out, err = program.communicate(timeout)
    finally:
        program.kill()
    assert program.returncode == status, out + err
    return out if status == 0 else err


def finished(
    module: str, argv: list[str], folder: Path, *, timeout: float = 120, **options: Any
) -> subprocess.CompletedProcess[str]:
    """A program run to its end, however it ended, as ``subprocess.run`` tells it."""
    program = Program(module, argv, folder, **options)
    try:
        out, err = program.communicate(timeout)
    finally:
        program.kill()
    return subprocess.CompletedProcess([module, *argv], program.wait(), out, err)


def _child(
    module: str,
    argv: list[str],
    outputs: tuple[str, str],
    environment: dict[str, str],
    prepare: Callable[[], None] | None,
    session: bool,
    cwd: str,
    given: str | None,
) -> None:
    if session:
        os.setsid()
    for number, path in zip((1, 2), outputs, strict=True):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(handle, number)
        os.close(handle)
    os.environ.clear()
    os.environ.update(environment)
    if given is not None:
        sys.stdin = open(given, encoding="utf-8")  # noqa: SIM115  (the program's, to its end)
        os.dup2(sys.stdin.fileno(), 0)
    tempfile.tempdir = None  # the fork server's
    os.chdir(cwd)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored where the suite runs under nohup
    sys.stdout.reconfigure(line_buffering=True)
    if prepare is not None:
        prepare()
    if module == "slm.serve":
        util.spawnv_passfds = _forked
    if module.startswith("slm.train"):  # whose own processes would each import a module that is run by its name
        from slm import cli

        cli.run(importlib.import_module(f"{module}.__main__" if module == "slm.train" else module).main, argv)
    sys.argv = [module, *argv]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


_start_python = util.spawnv_passfds


def _forked(path: str, args: list[str], passed: Iterable[int]) -> int:
    """As multiprocessing starts its helpers, with all modules in memory: its fork server's would be imported anew."""
    code = args[args.index("-c") + 1] if "-c" in args else ""
    if not code.startswith(("from multiprocessing.forkserver ", "from multiprocessing.resource_tracker ")):
        return _start_python(path, args, passed)
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        # As after exec: this helper's ends of pipes are the only ones, and no handler of its parent is there.
        kept = {0, 1, 2, *passed}
        for fd in map(int, os.listdir("/proc/self/fd")):
            if fd not in kept:
                with contextlib.suppress(OSError):
                    os.close(fd)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)
        exec(code, {"__name__": "__main__"})
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0
    finally:
        os._exit(status)
