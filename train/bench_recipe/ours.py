"""Our contender: ``slm train`` with the options of the command line and a budget, which counts from its start.

Tested in tests/train/bench_recipe/test_bench_recipe.py.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from slm.configuration import assigned, build
from slm.runs import list_checkpoints
from slm.train.bench_recipe.config import BenchRecipeConfig, run_options
from slm.train.bench_recipe.contender import Entry, fresh_cache, python_module, timed
from slm.train.config import RunConfig
from slm.train.report.run_record import RunRecord

QUIET = ("train.eval_every=1000000000", "train.checkpoint_every=1000000000", "train.sample_prompts=[]")
"""Time goes to training, unless the command line says otherwise. The last state is validated and saved."""
NAME = "ours"


def ours(config: BenchRecipeConfig, words: Sequence[str], folder: Path) -> Entry:
    """Train in ``folder`` with the overrides ``words`` for ``config.minutes``, set-up and saving included.

    A run that was stopped there goes on.
    """
    limits = [f"budget={60 * config.minutes:.6f}s", assigned("runs_dir", folder), f"name={NAME}", "resume=auto"]
    with fresh_cache(folder) as environment:
        command = python_module("slm", "train", *QUIET, *words, *limits)
        seconds = timed(
            command, folder / f"{NAME}.log", environment=environment, minutes=config.minutes, continues=True
        )
    record = _record(folder)
    return Entry(
        name=NAME,
        model=list_checkpoints(folder / NAME)[-1],
        tokens=record.tokens(),
        seconds=seconds,
        training_seconds=record.elapsed(),
        note=f"{record.model_facts().get('n_params', 0) / 1e6:.1f}M parameters",
    )


def chosen(config: BenchRecipeConfig, folder: Path) -> BenchRecipeConfig:
    """``config`` with the options of our run: its shape, tokenizer and batch are what the others get, too."""
    return replace(config, **run_options(build(RunConfig, _record(folder).config)))


def _record(folder: Path) -> RunRecord:
    record = RunRecord(folder / NAME)
    record.update()
    return record
