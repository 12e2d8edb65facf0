"""``make tune`` and ``make qat`` in this process or, with ``NPROC=2``, in several: by the launcher of ``make train``.

Tested in tests/train/tune/test_processes.py.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from slm.machine.waiting import wait_awake
from slm.report import final_json
from slm.train import autobatch
from slm.train.config import RunConfig, TrainConfig
from slm.train.distributed.launch import parse, start_processes
from slm.train.resolve import ChooseMicroBatch


class Configure(Protocol):
    """From the words of a command to the run's configuration."""

    def __call__(
        self, argv: list[str], *, processes: int, choose: ChooseMicroBatch, log: Callable[[str], None]
    ) -> RunConfig:
        """``processes``: how many train together. ``choose`` divides a step where ``train.micro_batch`` is ``auto``.
        ``log`` gets the lines for a person."""
        ...


def run(
    argv: list[str], module: str, configure: Configure, end: Callable[[RunConfig], str | None] = lambda config: None
) -> int:
    """Train what ``configure`` makes of ``argv``, and print the line that ``end`` has on it. Returns the exit code.

    Several processes (``nproc=2``) are started as ``python -m MODULE``, and come here, too.
    """
    launch, words = parse(argv)
    if launch.processes > 1:
        return start_processes(
            launch,
            words,
            module,
            lambda words, processes, choose: configure(words, processes=processes, choose=choose, log=_silent),
        )
    processes, rank = (int(os.environ.get(name, default)) for name, default in (("WORLD_SIZE", "1"), ("RANK", "0")))
    wait_awake(processes)
    log = print if rank == 0 else _silent
    config = configure(words, processes=processes, choose=autobatch.choose_micro_batch, log=log)
    # What follows takes seconds to import. Wrong options have been reported by now.
    from slm.train.distributed.join import join
    from slm.train.distributed.rank_process import run_rank

    ranks = join()
    from slm.train.run.result import result
    from slm.train.start import start

    code = run_rank(ranks, config.root, partial(start, config, ranks, end=end))
    if rank == 0:
        final_json(result(config.root))
    return code


def shared_step(
    options: dict[str, Any], defaults: TrainConfig, processes: int, *, given: Callable[[str], bool]
) -> dict[str, int]:
    """The step of ``options``, or else of ``defaults``, in passes that ``processes`` can share; nothing where the
    command itself gives the batch (``given`` says so by an option's name)."""
    if given("train.micro_batch") or given("train.grad_accum"):
        return {}
    micro_batch = options.get("train.micro_batch", defaults.micro_batch)
    return shared_batch(micro_batch, options.get("train.grad_accum", defaults.grad_accum), processes)


def shared_batch(micro_batch: int, grad_accum: int, processes: int) -> dict[str, int]:
    """The options of a step with the same sequences, in passes that ``processes`` can share.

    As they are where the passes can be shared already, or the sequences cannot.
    """
    rows = micro_batch * grad_accum
    fitting = (each for each in range(processes, rows + 1, processes) if each >= grad_accum and rows % each == 0)
    passes = grad_accum if grad_accum % processes == 0 else next(fitting, grad_accum)
    return {"train.micro_batch": rows // passes, "train.grad_accum": passes}


def _silent(_: str) -> None:
    """No line: another process writes it."""
