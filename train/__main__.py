"""``python -m slm.train``: one training run, started or resumed."""

import os
from functools import partial

from slm import cli
from slm.machine.waiting import wait_awake
from slm.report import final_json
from slm.train import autobatch
from slm.train.config import RunConfig
from slm.train.resolve import Chosen, resolve


def main(argv: list[str]) -> int:
    """Resolve the configuration, join the other processes of the run, train. Returns the exit code."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    wait_awake(processes)
    config = resolve(argv, autobatch.choose_micro_batch, _choose if processes == 1 else None)
    # What follows takes seconds to import. Wrong options have been reported by now.
    from slm.train.distributed.join import join
    from slm.train.distributed.rank_process import run_rank

    ranks = join()  # before anything starts torch's threads
    from slm.train.run.result import result
    from slm.train.start import start

    def train(config: RunConfig) -> int:
        return run_rank(ranks, config.root, partial(start, config, ranks))

    if config.distill.born_again and ranks.size == 1:
        from slm.train.beginning.two_runs import train_both

        code = train_both(config, train)
    else:
        code = train(config)
    if ranks.main:
        final_json(result(config.root))
    return code


def _choose(argv: list[str], seconds: float) -> Chosen:
    from slm.train.budget.choose import choose  # loads torch

    return choose(argv, seconds)


if __name__ == "__main__":
    cli.run(main)
