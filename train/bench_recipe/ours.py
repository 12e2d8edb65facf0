"""Our contender: ``slm train`` with the options of the command line, bounded so that the process ends in time.

Tested in tests/train/bench_recipe/test_bench_recipe.py.
"""

from collections.abc import Sequence
from pathlib import Path

from data.errors import UserError
from slm.runs import list_checkpoints
from train.bench_recipe.contender import REHEARSAL_STEPS, Entry, fresh_cache, python_module, timed
from train.report.run_record import RunRecord

QUIET = ("train.eval_every=1000000000", "train.checkpoint_every=1000000000", "train.sample_prompts=[]")
"""Time goes to training, unless the command line says otherwise. The last state is validated and saved."""


def ours(words: Sequence[str], minutes: float, folder: Path) -> Entry:
    """Train in ``folder`` for ``minutes``, set-up and saving included.

    ``train.max_minutes`` counts training only. So a rehearsal of a few steps measures what comes before and after.
    UserError where that takes all of the time.
    """
    common = [*QUIET, *words, f"runs_dir={_quoted(folder)}", "resume=never"]
    with fresh_cache(folder) as environment:
        steps = [f"train.max_steps={REHEARSAL_STEPS}", f"train.eval_every={REHEARSAL_STEPS}", "train.log_every=1"]
        command = python_module("slm", "train", *common, "name=rehearsal", *steps)
        seconds = timed(command, folder / "rehearsal.log", environment=environment)
    overhead = seconds - _record(folder / "rehearsal").elapsed()
    left = 60 * minutes - overhead
    if left <= 0:
        raise UserError(f"minutes={minutes} is less than what our set-up takes here ({overhead:.0f} s): give more")
    with fresh_cache(folder) as environment:
        limit = [f"train.max_minutes={left / 60:.5f}", "train.max_steps=1000000000"]
        command = python_module("slm", "train", *common, "name=ours", *limit)
        seconds = timed(command, folder / "ours.log", environment=environment)
    record = _record(folder / "ours")
    return Entry(
        name="ours",
        model=list_checkpoints(folder / "ours")[-1],
        tokens=record.tokens(),
        seconds=seconds,
        training_seconds=record.elapsed(),
        note=f"{record.model_facts().get('n_params', 0) / 1e6:.1f}M parameters",
    )


def _record(root: Path) -> RunRecord:
    record = RunRecord(root)
    record.update()
    return record


def _quoted(path: Path) -> str:
    text = str(path).replace("'", "\\'")
    return f"'{text}'"
