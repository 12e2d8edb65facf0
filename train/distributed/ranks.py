"""Several processes that train one model: who they are, how they meet, what they tell each other.

``torchrun`` (or ``python -m train.distributed.launch``, which calls it) starts the processes and restarts them; they
talk over gloo. :class:``Ranks`` is the seam the rest of training sees: the single process has one that does nothing.

Rank 0 alone reads and writes the run's directory. What the others need of it comes from rank 0, so that machines
without a common disk can train together.
"""

import ctypes
import os
import re
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from data.errors import UserError
from data.stream.loader import EndOfTextError
from slm.machine import hardware, topology
from train.distributed.stop_file import EXIT_FILE, MAIN_HOST, stop_file
from train.guards import NonFiniteError

T = TypeVar("T")

PATIENCE = timedelta(minutes=60)
"""How long a rank waits for the others: rank 0 may train a tokenizer, save or write samples meanwhile."""


class LostContactError(UserError):
    """Another rank is gone: this one cannot go on, a restart can."""


class ToldElsewhereError(Exception):
    """Rank 0 has met a person's mistake and tells it; the others end without a word."""


class Ranks:
    """The processes of this run. This class is the single process; :class:``Group`` is several."""

    rank, size = 0, 1
    threads = 0
    """Compute threads that are this process's share of its machine; 0: the machine is its alone."""

    @property
    def main(self) -> bool:
        """Whether this process reads and writes the run's directory, and speaks."""
        return self.rank == 0

    def first(self, function: Callable[[], T]) -> T:
        """What ``function`` returned on rank 0. Where it raises UserError there, every rank ends."""
        return function()

    def gather(self, value: T) -> list[T]:
        """Every rank's value, in their order; only rank 0 may rely on it."""
        return [value]

    def total(self, values: Sequence[float]) -> list[float]:
        """The sums of the values over the ranks, the same on every rank to the bit."""
        return list(values)

    def spread(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite ``tensors`` with rank 0's."""

    def settle(self, tensors: Sequence[Tensor]) -> bool:
        """Overwrite ``tensors`` with rank 0's where some rank's differ in a bit. True where they did."""
        return False

    def close(self) -> None:
        """Leave the group."""


ALONE = Ranks()


class Group(Ranks):
    """Several processes, joined over gloo."""

    def __init__(self, threads: int) -> None:
        self.rank, self.size, self.threads = dist.get_rank(), dist.get_world_size(), threads

    def first(self, function: Callable[[], T]) -> T:
        outcome: list[Any] = [None, None]
        failure = None
        if self.main:
            try:
                outcome[0] = function()
            except UserError as error:
                failure, outcome[1] = error, str(error)
        with contact():
            dist.broadcast_object_list(outcome, src=0)
        if failure is not None:
            raise failure
        if outcome[1] is not None:
            raise ToldElsewhereError
        return outcome[0]

    def gather(self, value: T) -> list[T]:
        values: list[Any] | None = [None] * self.size if self.main else None
        with contact():
            dist.gather_object(value, values, dst=0)
        return values if values is not None else [value]

    def total(self, values: Sequence[float]) -> list[float]:
        sums = torch.tensor(list(values), dtype=torch.float64)
        with contact():
            dist.all_reduce(sums)
        return sums.tolist()

    def spread(self, tensors: Sequence[Tensor]) -> None:
        with contact(), torch.no_grad():
            for tensor in tensors:
                whole = tensor.detach().contiguous()
                dist.broadcast(whole, src=0)
                if whole.data_ptr() != tensor.data_ptr():
                    tensor.copy_(whole)

    def settle(self, tensors: Sequence[Tensor]) -> bool:
        mine = torch.tensor([fingerprint(tensor) for tensor in tensors], dtype=torch.int64)
        lowest, highest = mine.clone(), mine.clone()
        with contact():
            dist.all_reduce(lowest, op=dist.ReduceOp.MIN)
            dist.all_reduce(highest, op=dist.ReduceOp.MAX)
        if torch.equal(lowest, highest):
            return False
        self.spread(tensors)
        return True

    def close(self) -> None:
        dist.destroy_process_group()


def join(*, pin: bool) -> Ranks:
    """Meet the other processes that torchrun started; :data:``ALONE`` where it started none.

    With ``pin`` this process keeps to cores of its own: the local ranks divide the usable ones. Call it before
    torch has started threads, since these inherit the cores.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ and "WORLD_SIZE" not in os.environ:
        return ALONE
    end_with_parent()
    if (path := os.environ.get(EXIT_FILE)) and stop_file(Path(path)).exists():
        raise SystemExit(0)  # asked to stop before this process could hear it; the launcher knows the code
    size = int(os.environ.get("WORLD_SIZE", "1"))
    local_rank, local_size = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if size == 1:
        return ALONE
    threads = -(-hardware.compute_threads() // local_size)
    if pin and local_size > 1:
        pin_to(local_rank, local_size)
        threads = min(threads, hardware.compute_threads())  # shares may differ by one core
    if "GLOO_SOCKET_IFNAME" not in os.environ:
        name = interface_towards(os.environ["MASTER_ADDR"]) if size > local_size else loopback()
        if name:
            os.environ["GLOO_SOCKET_IFNAME"] = name
    with contact():
        store, rank, size = next(dist.rendezvous("env://", timeout=PATIENCE))
        store = dist.PrefixStore(f"slm.{restarts()}", store)
        rank = (rank - _main_rank(store, rank, size)) % size
        dist.init_process_group("gloo", store=dist.PrefixStore("gloo", store), rank=rank, world_size=size)
    return Group(threads)


def _main_rank(store: Any, rank: int, size: int) -> int:
    """Which of torchrun's ranks is to be rank 0 here: the first on the machine that holds the run's directory.

    torchrun orders machines by their addresses as text; without a word from the launcher its order stays.
    """
    store.set(f"main.{rank}", os.environ.get(MAIN_HOST, "0"))
    says = [store.get(f"main.{other}") for other in range(size)]
    return says.index(b"1") if b"1" in says else 0


def pin_to(local_rank: int, local_size: int) -> None:
    """Keep this process to its share of the usable cores, their SMT siblings included (data workers use those)."""
    if not hasattr(os, "sched_setaffinity"):  # macOS
        return
    machine = topology.read()
    if len(machine.fast_cores) >= local_size:
        share = topology.divide(machine.fast_cores, local_size)[local_rank]
        os.sched_setaffinity(0, {cpu for core in share for cpu in core.cpus})


def end_with_parent() -> None:
    """Let the kernel send SIGTERM to this process when the launcher is killed: it then saves and ends (Linux)."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1  # prctl.h
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, int(signal.SIGTERM))


def restarts() -> int:
    """How often torchrun has started this run's processes over."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def interface_towards(address: str) -> str | None:
    """The network interface that packets to ``address`` leave by (nothing is sent), or None."""
    import psutil

    try:
        family, kind, protocol, _, target = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            own = probe.getsockname()[0]
    except OSError:
        return None
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address.split("%")[0] == own for each in addresses):
            return name
    return None


def loopback() -> str | None:
    """The loopback interface's name."""
    return interface_towards("127.0.0.1")


def fingerprint(tensor: Tensor) -> int:
    """The sum of the bits of ``tensor`` as whole numbers: different weights practically never share it."""
    words = torch.int32 if tensor.element_size() == 4 else torch.uint8
    return int(tensor.detach().contiguous().view(words).sum(dtype=torch.int64))


@contextmanager
def contact() -> Iterator[None]:
    """Turn gloo's errors about a peer that is gone into one line."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and not _NETWORK.search(str(error)):
            raise
        raise LostContactError(
            "lost contact with another process of this run (it ended, or its machine cannot be reached): the same "
            "command goes on from the last checkpoint"
        ) from error


_NETWORK = re.compile(r"gloo|connect|socket|timed? ?out|peer|broken pipe", re.IGNORECASE)


def guarded(ranks: Ranks, run: Callable[[], int]) -> int:
    """The exit code of ``run()``, made fit for torchrun, which starts processes over after any code but 0.

    A run that ended as it was asked to, or that a restart cannot mend (a person's mistake), tells its code to the
    launcher and exits with 0; everything else keeps its code.
    """
    path = os.environ.get(EXIT_FILE)
    if ranks.size == 1 and path is None:
        return run()
    try:
        code = run()
        ranks.close()
    except ToldElsewhereError:
        code = 2
    except LostContactError as error:
        print(f"rank {ranks.rank}: {error}", file=sys.stderr, flush=True)
        code = 1
    except UserError as error:
        if ranks.main or not isinstance(error, (NonFiniteError, EndOfTextError)):  # these are everybody's
            print("error: " + " ".join(str(error).split()), file=sys.stderr, flush=True)
        code = 2
    if path and code in (0, 2, 130, 143):
        Path(path).write_text(str(code))
        status = 0
    else:
        status = 0 if code in (130, 143) else code
    if code in (1, 2) and ranks.size > 1:
        # gloo's threads are in the midst of something, and would abort an orderly end of the process.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


@contextmanager
def own_root(ranks: Ranks, root: Path) -> Iterator[Path]:
    """The run's directory on rank 0. Elsewhere a folder that is thrown away, and nothing is printed."""
    if ranks.main:
        yield root
        return
    exit_file = os.environ.get(EXIT_FILE)
    parent = Path(exit_file).parent if exit_file else None  # the launcher's, which it removes whatever happens here
    with (
        tempfile.TemporaryDirectory(prefix="slm-rank-", dir=parent) as folder,
        Path(os.devnull).open("w") as nowhere,
        redirect_stdout(nowhere),
    ):
        yield Path(folder)
