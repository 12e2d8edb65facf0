"""``python -m slm.train.distributed.launch``: one training run in several processes, on this machine or on several.

Starts torchrun's agent with the options that fit this program and passes everything else on to ``python -m slm.train``,
or to another module that trains (``slm.train.tune.processes``):

    python -m slm.train.distributed.launch nproc=2 preset=10m name=mine
    python -m slm.train.distributed.launch nnodes=2 main=192.168.1.10:29400 preset=125m name=mine   (on both machines)

What it adds to ``torchrun -m slm.train``: mistakes are reported in one line before anything starts; a stopped run exits
with the code that a single process would have (130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP, 2 for a mistake)
on every machine;
processes that are asked to stop get time to save; the machine named by ``main`` holds the run's directory.

Tested in tests/train/test_distributed.py.
"""

import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from slm import cli
from slm.configuration import build
from slm.data.errors import UserError, one_line
from slm.machine.hardware import share_cores
from slm.train.config import RunConfig
from slm.train.distributed.launch_files import EXIT_FILE, MAIN_HOST, exit_code, launch_folder, stop_file
from slm.train.interrupt import drop_lost_output, handle_stop_signals
from slm.train.resolve import ChooseMicroBatch, resolve

Configure = Callable[[list[str], int, ChooseMicroBatch], RunConfig]
"""From the words of a command, the number of processes and a way to choose the micro-batch to the configuration."""
DEFAULT_PORT = 29400
SAVING_SECONDS = 60
"""How long processes may take to save after a second signal, before they are killed."""
JOIN_SECONDS = 900
"""How long machines wait for each other at a start; torchrun's own default is 600."""


@dataclass(frozen=True, kw_only=True)
class LaunchConfig:
    """How many processes, where, and how often they are restarted."""

    nproc: int = 1
    """Processes on this machine."""
    nnodes: int = 1
    """Machines, each of which starts this command with the same options."""
    main: str = ""
    """With several machines: ``host`` or ``host:port`` of the one that holds the run's directory."""
    restarts: int = 3
    """How often processes that died are restarted, from the last checkpoint."""

    @property
    def processes(self) -> int:
        """Processes on all machines."""
        return self.nproc * self.nnodes

    def __post_init__(self) -> None:
        for name in ("nproc", "nnodes"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.restarts < 0:
            raise UserError(f"restarts must not be negative, not {self.restarts}")
        if self.nnodes > 1 and not self.main:
            raise UserError("several machines need main=HOST: the address of the one that holds the run's directory")


def main(argv: list[str]) -> int:
    """Train in several processes. Returns the run's exit code."""
    return start_processes(*parse(argv), "slm.train", lambda words, _, choose: resolve(words, choose))


def start_processes(launch: LaunchConfig, overrides: list[str], module: str, configure: Configure) -> int:
    """Check what can be checked, start ``python -m MODULE`` in each process, wait. Returns the run's exit code.

    ``configure`` makes of ``overrides`` the configuration that the processes will have.
    """
    name = _check(launch, overrides, configure)
    if launch.nnodes > 1 and (own := own_address(_address(launch)[0])).startswith("127."):
        raise UserError(f"main={launch.main} is {own} here, where no other machine reaches it: give its address there")
    share_cores()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # until a rank knows its cores; torchrun warns where it is not set
    # A rank that is killed cannot clean up: the temporary files of ranks and of torchrun are in this folder, too.
    with launch_folder() as folder:
        exit_file = folder / "exit"
        os.environ[EXIT_FILE] = str(exit_file)
        os.environ[MAIN_HOST] = "1" if launch.nnodes == 1 or is_here(_address(launch)[0]) else "0"
        program = ["-m", module, *overrides]
        return _run([*torchrun_options(launch, name), "--log-dir", str(folder)], program, exit_file)


def parse(argv: list[str]) -> tuple[LaunchConfig, list[str]]:
    """The launcher's own ``key=value`` words, and the rest, which is training's."""
    own: dict[str, str | int] = {}
    rest = []
    for word in argv:
        key, sign, value = word.partition("=")
        if not sign or key not in LaunchConfig.__dataclass_fields__:
            rest.append(word)
        elif key == "main":
            own[key] = value
        elif value.isdigit():
            own[key] = int(value)
        else:
            raise UserError(f"{key} must be a whole number, not {value!r}")
    return build(LaunchConfig, own), rest


def _check(launch: LaunchConfig, overrides: list[str], configure: Configure) -> str:
    """Report what can be found wrong before a process is started. Returns the run's name."""
    config = configure(overrides, launch.processes, _refuse_auto)
    config.train.check_processes(launch.processes)
    return config.root.name


def _refuse_auto(config: RunConfig) -> RunConfig:
    raise UserError("train.micro_batch=auto works only with one process: give a number")


def torchrun_options(launch: LaunchConfig, name: str) -> list[str]:
    """torchrun's command line for ``launch`` of the run ``name``, without the program."""
    options = ["--nproc-per-node", str(launch.nproc), "--max-restarts", str(launch.restarts)]
    options += ["--shutdown-timeout", str(SAVING_SECONDS), "--signals-to-handle", "SIGQUIT"]
    if launch.nnodes == 1:
        return [*options, "--standalone"]
    host, port = _address(launch)
    # Left alone, torchrun compares host names with the main machine's, which need not match.
    is_host = "true" if is_here(host) else "false"
    return [
        *options,
        *("--nnodes", str(launch.nnodes), "--rdzv-backend", "c10d", "--rdzv-id", f"slm-{name}"),
        *("--rdzv-endpoint", f"{host}:{port}", "--local-addr", own_address(host)),
        *("--rdzv-conf", f"is_host={is_host},join_timeout={JOIN_SECONDS}"),
    ]


def _address(launch: LaunchConfig) -> tuple[str, int]:
    host, _, port = launch.main.partition(":")
    if port and not (port.isdigit() and 0 < int(port) < 1 << 16):
        raise UserError(f"main={launch.main} must be HOST or HOST:PORT, the port from 1 to 65535")
    return host, int(port or DEFAULT_PORT)


def own_address(host: str) -> str:
    """This machine's address as the machine ``host`` sees it. UserError where there is no way there."""
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            return probe.getsockname()[0]
    except (OSError, UnicodeError) as error:  # the latter: a name that cannot be one, as a..b
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"there is no way to main={host} from here ({reason}): check the address") from None


def is_here(host: str) -> bool:
    """Whether ``host`` names this machine."""
    try:
        return own_address(host) in {info[4][0] for info in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return False


def _run(options: list[str], program: list[str], exit_file: Path) -> int:
    # Without torchrun's reports of signals, dead processes and hosts without names: those below are shorter.
    os.environ.setdefault("LOGLEVEL", "CRITICAL")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    import psutil
    import torch.distributed as dist
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    stopped: list[int] = []

    def stop(number: int, _frame: object) -> None:
        """Ask the processes to stop, and keep waiting: they save after a step that all machines agree on."""
        if number == signal.SIGHUP:
            drop_lost_output()
        children = psutil.Process().children()
        if stopped or not children:
            raise SignalException("stopped", sigval=signal.Signals(number))
        stopped.append(number)
        stop_file(exit_file).write_text(str(128 + number))  # for a process that cannot handle signals yet
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.send_signal(number)

    handle_stop_signals(stop)
    try:
        torchrun.run(torchrun.parse_args([*options, *program]))
    except SignalException as error:
        return _left_code(exit_file) or 128 + int(error.sigval)
    except ChildFailedError as error:
        code = _left_code(exit_file)
        if code:
            return code
        rank, failure = error.get_first_failure()
        how = f"signal {-failure.exitcode}" if failure.exitcode < 0 else f"exit code {failure.exitcode}"
        print(
            f"error: process {rank} ended with {how}, and no restart is left (restarts=N allows more); "
            "the same command goes on from the last checkpoint",
            file=sys.stderr,
        )
        return 1
    except (RendezvousError, dist.DistError) as error:
        print(f"error: the machines did not meet ({one_line(error, 300)})", file=sys.stderr)
        return 1
    return _left_code(exit_file)


def _left_code(exit_file: Path) -> int:
    """The exit code that the ranks left, or that of a stop before they could be signalled; 0 without either."""
    left = exit_code(exit_file)
    return left if left is not None else exit_code(stop_file(exit_file)) or 0


if __name__ == "__main__":
    cli.run(main)
