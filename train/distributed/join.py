"""How the processes that torchrun started meet over gloo, and on which cores and network interface each one works."""

import os
import signal
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from slm.machine import hardware, topology
from slm.machine.crashes import end_with_parent
from slm.train.distributed.launch_files import EXIT_FILE, MAIN_HOST, restarts, stop_file
from slm.train.distributed.ranks import SINGLE_PROCESS, GlooRanks, Ranks, lost_peer_errors

PATIENCE = timedelta(minutes=60)
"""How long a rank waits for the others: rank 0 may train a tokenizer, save or write samples meanwhile."""


def join(*, pin: bool = True) -> Ranks:
    """Meet the other processes that torchrun started; ``SINGLE_PROCESS`` where it started none.

    With ``pin`` this process keeps to some of the cores: the local ranks divide the usable ones. Call it before
    torch has started threads, since these inherit the cores.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ and "WORLD_SIZE" not in os.environ:
        return SINGLE_PROCESS
    end_with_parent(signal.SIGTERM)  # when the launcher is killed: this process then saves and ends
    if (path := os.environ.get(EXIT_FILE)) and stop_file(Path(path)).exists():
        raise SystemExit(0)  # stopped before this process could be signalled; the launcher knows the code
    if path:
        Path(path).unlink(missing_ok=True)  # of an earlier start; nobody has met yet, so nobody has left one
    size = int(os.environ.get("WORLD_SIZE", "1"))
    local_rank, local_size = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if size == 1:
        return SINGLE_PROCESS
    threads = -(-hardware.compute_threads() // local_size)
    if pin and local_size > 1:
        pin_to(local_rank, local_size)
        threads = min(threads, hardware.compute_threads())  # shares may differ by one core
    if "GLOO_SOCKET_IFNAME" not in os.environ:
        name = interface_towards(os.environ["MASTER_ADDR"]) if size > local_size else loopback()
        if name:
            os.environ["GLOO_SOCKET_IFNAME"] = name
    with lost_peer_errors():
        store, rank, size = next(dist.rendezvous("env://", timeout=PATIENCE))
        store = dist.PrefixStore(f"slm.{restarts()}", store)
        rank = (rank - _main_rank(store, rank, size)) % size
        dist.init_process_group("gloo", store=dist.PrefixStore("gloo", store), rank=rank, world_size=size)
    return GlooRanks(threads)


def _main_rank(store: Any, rank: int, size: int) -> int:
    """Which of torchrun's ranks becomes rank 0: the first on the machine that holds the run's directory.

    torchrun orders machines by their addresses as text. Where the launcher has named no machine that order stays.
    """
    store.set(f"main.{rank}", os.environ.get(MAIN_HOST, "0"))
    on_main_host = [store.get(f"main.{other}") for other in range(size)]
    return on_main_host.index(b"1") if b"1" in on_main_host else 0


def pin_to(local_rank: int, local_size: int) -> None:
    """Keep this process to its share of the usable cores, their SMT siblings included (data workers use those)."""
    if not hasattr(os, "sched_setaffinity"):  # macOS
        return
    machine = topology.read()
    if len(machine.fast_cores) >= local_size:
        share = topology.divide(machine.fast_cores, local_size)[local_rank]
        os.sched_setaffinity(0, {cpu for core in share for cpu in core.cpus})


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
