"""Kill a training run again and again, at random and inside its saves: it must come out as if nothing had happened.

    python -m tests.soak.kill kills=200 inside=50 seed=1

A small real run is killed (kill -9) and started again until it is finished, then the next one, until there were
``kills`` kills, ``inside`` of them or more while a checkpoint was being written (its temporary directory was there
before the kill and after it). Checked each time: every checkpoint under its final name is whole; the next start
resumes from the newest of them without a warning; at most one save is lost. Checked at the end of each run: weights,
moments, random state and losses equal those of a run that was never killed, to the bit.
"""

import random
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from slm import cli
from slm.data.errors import UserError
from slm.machine.record import machine_record
from slm.model.checkpoint import verify
from slm.report import final_json, table
from slm.runs import list_checkpoints
from tests.helpers.small_run import SmallRun, differences, last_step, losses, newest_step, write_corpus

EVERY, STEPS = 10, 60
"""Steps from save to save, and of a whole run."""


@dataclass
class Tally:
    """What happened so far."""

    kills: int = 0
    inside: int = 0
    runs: int = 0
    resumes: int = 0
    lost: list[int] = field(default_factory=list)
    """Steps that had been logged but were not in the checkpoint of the next start, per kill."""


def main(argv: list[str]) -> int:
    """Print the figures as a table and as the last line's JSON. AssertionError where anything was lost."""
    options = {"kills": 200, "inside": 50, "seed": 1, "seconds": 0, "background": 1, "workers": 0}
    for word in argv:
        key, _, value = word.partition("=")
        if key not in options or not value.isdigit():
            raise UserError(f"cannot read {word!r}: options are {', '.join(f'{k}={v}' for k, v in options.items())}")
        options[key] = int(value)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        tally = soak(Path(folder), **options)
    rows = [
        ["kills (kill -9)", tally.kills],
        ["of them inside a save", tally.inside],
        ["starts that had to resume, all of which did", tally.resumes],
        ["runs finished, each equal to the one never killed to the bit", tally.runs],
        ["steps from save to save", EVERY],
        ["steps lost by a kill, mean", round(sum(tally.lost) / max(1, len(tally.lost)), 1)],
        ["steps lost by a kill, most", max(tally.lost, default=0)],
        ["seconds", round(time.monotonic() - began)],
    ]
    table("Killed and resumed", ["", ""], rows)
    final_json({"soak": "kill", **options, "measured": dict(rows), **machine_record()})
    return 0


def soak(folder: Path, *, kills: int, inside: int, seed: int, seconds: int = 0, workers: int = 0) -> Tally:
    """Kill until both numbers are reached (or, where given, ``seconds`` are over); finish the run that is under way."""
    chance, tally = random.Random(seed), Tally()
    corpus = write_corpus(folder / "documents.jsonl")
    common = (
        f"data.files=[{corpus}]",
        f"train.max_steps={STEPS}",
        f"train.checkpoint_every={EVERY}",
        f"train.workers={workers}",
    )
    whole = SmallRun(folder, "name=whole", *common).finish()
    end = time.monotonic() + seconds if seconds else float("inf")

    def enough() -> bool:
        return (tally.kills >= kills and tally.inside >= inside) or time.monotonic() > end

    while not enough():
        run = None
        while run is None or run.returncode != 0:
            run = _life(folder, common, chance, tally, stop=enough(), aim=inside - tally.inside > 0)
            # A save that is written in the background may be lost on top of the interval.
            assert max(tally.lost, default=0) <= 2 * EVERY
        last = run.root / "checkpoints" / f"step-{STEPS:08d}"
        assert differences(last, whole.root / "checkpoints" / last.name) == []
        assert losses(run.root) == losses(whole.root)
        tally.runs += 1
        shutil.rmtree(run.root)
    return tally


def _life(folder: Path, common: tuple[str, ...], chance: random.Random, tally: Tally, *, stop: bool, aim: bool):
    """Start the run or go on with it; kill it at some moment unless ``stop``. Checks what the start made of things."""
    root = folder / "killed"
    newest, logged = newest_step(root), last_step(root)
    run = SmallRun(folder, "name=killed", *common)
    if not stop:
        hit = _kill_inside(run, chance) if aim and chance.random() < 0.6 else _kill_anywhere(run, chance)
        if hit is not None:
            tally.kills += 1
            tally.inside += hit
            for path in list_checkpoints(root):
                verify(path)
            tally.lost.append(last_step(root) - newest_step(root))
            # One save may be in the making while the training goes on; the one before it is on the disk.
            assert newest_step(root) >= last_step(root) // EVERY * EVERY - EVERY, (newest_step(root), last_step(root))
    code = run.wait()
    assert code in (0, -9), f"{code}\n{run.out}\n{run.err}"
    assert "warning" not in run.out, run.out
    assert run.err == "", run.err
    if newest and ("parameters" in run.out or code == 0):  # it came as far as to say where it starts
        assert f"from step-{newest:08d}" in run.out or "is finished" in run.out, (newest, logged, run.out)
        tally.resumes += 1
    return run


def _kill_anywhere(run: SmallRun, chance: random.Random) -> int | None:
    """Kill after a random time; None where the run was finished before."""
    deadline = time.monotonic() + chance.uniform(0.0, 2.0)
    while time.monotonic() < deadline and run.alive():
        time.sleep(0.002)
    if not run.alive():
        return None
    writing = _writing(run.root)
    run.kill()
    return None if run.returncode == 0 else int(bool(writing & _writing(run.root)))


def _kill_inside(run: SmallRun, chance: random.Random) -> int | None:
    """Kill at a random moment of a save, not always the first one; None where the run was finished before."""
    for _ in range(chance.randint(1, 2)):
        while run.alive() and not _writing(run.root):
            time.sleep(0.0005)
        writing = _writing(run.root)
        if chance.random() < 0.5:
            break
        while run.alive() and _writing(run.root):
            time.sleep(0.0005)
    time.sleep(chance.uniform(0.0, 0.03))
    if not run.alive():
        return None
    writing = _writing(run.root)
    run.kill()
    return None if run.returncode == 0 else int(bool(writing & _writing(run.root)))


def _writing(root: Path) -> set[str]:
    """The names of checkpoints in the making."""
    return {path.name for path in (root / "checkpoints").glob(".step-*.tmp")}


if __name__ == "__main__":
    cli.run(main, sys.argv[1:])
