"""The shards of ``slm prepare`` as a step of a datatrove pipeline, for a text that outgrows one machine.

datatrove's executors run the tasks: on this machine, on a cluster under Slurm, or by Ray. All of them see one folder.
``slm prepare`` with the same words, before or afterwards, finds what is made, and writes the report.

Tested in tests/train/tools/test_datatrove_step.py.
"""

from collections.abc import Iterable
from typing import Any

from datatrove.pipeline.base import PipelineStep

from slm.configuration import load
from slm.data.prepare.repeated import list_repeated, make_signatures
from slm.data.prepare.shard import make_shard
from slm.data.prepare.work import MADE, Step, alone
from slm.train.tools.prepare import PrepareConfig, words_of, work_of


class PrepareShards(PipelineStep):
    """Each task takes every n-th shard; n is the number of tasks. With ``data.dedup`` there are two runs: the first
    makes signatures of the documents, and the second the shards without the duplicates."""

    name = "slm prepare"
    type = "tokenizer"

    def __init__(self, *words: str) -> None:
        """``words``: those of ``slm prepare``, as ``PrepareShards("10m", "books/", "out=corpus")``. Paths are as on
        the machines that run the tasks."""
        super().__init__()
        self.words = words

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterable[Any]:
        config = load(PrepareConfig, "prepare", words_of(self.words))
        with alone(config.folder, wait=True):  # the first task decides what the shards are, the others read that
            work = work_of(config)
            if work.needs_list and not work.missing("signatures"):
                list_repeated(work)
        step: Step = "signatures" if work.needs_list else "shards"
        work = work if work.needs_list else work.with_list()
        for number in range(rank, len(work.shards), world_size):
            if not work.path(number, MADE[step]).exists():
                (make_signatures if step == "signatures" else make_shard)(work, number)
                self.stat_update(step, value=1, unit="task")
        return ()
