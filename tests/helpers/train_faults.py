"""Faults that a training process is given before it starts, for tests: real memory goes bad, a real limit is set."""

import fcntl
import functools
import hashlib
import os
import resource
import select
import signal
import termios
from collections.abc import Callable
from pathlib import Path

import torch


def poison_weights(steps: tuple[int, ...]) -> None:
    """Before each of these calls of the step a weight is NaN in memory; afterwards it is what it was."""
    import slm.train.trainer

    true_step, calls = slm.train.trainer.train_step, iter(range(1, 1_000_000))

    @functools.wraps(true_step)
    def step(trained, *rest, **options):
        if next(calls) not in steps:
            return true_step(trained, *rest, **options)
        weight = dict(trained.named_parameters())["model.norm.weight"]
        good = weight.detach().clone()
        with torch.no_grad():
            weight[0] = float("nan")
        try:
            return true_step(trained, *rest, **options)
        finally:
            with torch.no_grad():
                weight.copy_(good)

    slm.train.trainer.train_step = step


def pass_over_data(counts: dict[int, int]) -> None:
    """Before each of these calls of the step this many batches are taken and left alone."""
    import slm.train.trainer

    true_step, calls = slm.train.trainer.train_step, iter(range(1, 1_000_000))

    @functools.wraps(true_step)
    def step(model, optimizer, batches, **options):
        for _ in range(counts.get(next(calls), 0)):
            next(batches)
        return true_step(model, optimizer, batches, **options)

    slm.train.trainer.train_step = step


def log_batches(path: Path) -> None:
    """Append a hash of every batch that the training takes to ``path``."""
    import slm.train.trainer

    true_step = slm.train.trainer.train_step

    @functools.wraps(true_step)
    def step(model, optimizer, batches, **options):
        def told():
            for batch in batches:
                with path.open("a") as file:
                    file.write(hashlib.sha256(batch.tobytes()).hexdigest() + "\n")
                yield batch

        return true_step(model, optimizer, told(), **options)

    slm.train.trainer.train_step = step


def set_environment(values: dict[str, str]) -> None:
    """The process has these environment variables."""
    os.environ.update(values)


def ignore_hangup() -> None:
    """As ``nohup`` starts a program."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def take_terminal(path: str) -> None:
    """Make the terminal at ``path`` the one that controls this process's session, and its input and outputs."""
    terminal = os.open(path, os.O_RDWR)
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    for number in range(3):
        os.dup2(terminal, number)


def read_until_end(terminal: int, root: Path) -> None:
    """Read what is written to a terminal until the run in ``root`` has logged some steps; then close the terminal."""
    metrics = root / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_bytes().count(b"\n") > 5):
        if select.select([terminal], [], [], 0.05)[0]:
            try:
                os.read(terminal, 65536)
            except OSError:  # the run has ended
                break
    os.close(terminal)


def limit_memory(bytes_: int) -> None:
    """The process may take no more address space than ``bytes_`` on top of what it has."""
    with open("/proc/self/statm") as file:
        held = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + bytes_, resource.RLIM_INFINITY))


def save_often(seconds: float, then: Callable[[], None] | None = None) -> None:
    """A checkpoint is due after so much training time; ``then`` is called."""
    import slm.train.loop.saving

    slm.train.loop.saving.CHECKPOINT_SECONDS = seconds
    if then is not None:
        then()
