"""``distill.born_again``: two runs by one command, the second of which learns from the first one's predictions.

Born-again networks (Furlanello et al. 2018, arXiv 1805.04770): where text is read several times, a teacher of the same
shape holds back learning it by heart, so that the second model ends well below the first (docs/results/recipe.md).

Both are ordinary runs. ``NAME-teacher`` takes the given share of the steps and of the time. ``NAME`` takes the rest,
with the other as its ``distill.teacher``. The same command goes on with the one that was stopped.

Tested in tests/train/beginning/test_two_runs.py.
"""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from slm.data.errors import UserError
from slm.machine.hardware import process_seconds, restart_process_clock
from slm.model.checkpoint import TRAINER_STATE
from slm.runs import list_checkpoints
from slm.train.beginning.resumed import finished
from slm.train.components.make import make_components
from slm.train.config import RunConfig
from slm.train.run.run_directory import TOKENIZER


def train_both(config: RunConfig, train: Callable[[RunConfig], int]) -> int:
    """Train the teacher unless it is finished, then the run itself. Returns the first exit code that is not 0.

    ``train`` trains one run and returns its exit code.
    """
    first = teacher_of(config)
    state = None if config.resume == "never" else _end_of(first)
    spent = 0.0
    if state is None:
        share = config.distill.born_again
        print(
            f"{first.root} trains for {share:g} of the run; its model then teaches that of {config.root} "
            "(distill.born_again)",
            flush=True,
        )
        if code := train(first):
            return code
        state = _end_of(first)
        spent = process_seconds()
        restart_process_clock()
    if state is None:
        raise UserError(f"{first.root} has not come to its end, so there is no teacher: start the same command again")
    return train(taught(config, first, state, spent))


def teacher_of(config: RunConfig) -> RunConfig:
    """The first run: a part of the steps and of the time, its own order of the text, nothing that is for the end of the
    second."""
    train, share = config.train, config.distill.born_again
    predicted = config.facts.get("predicted") or {}
    facts = {name: value for name, value in config.facts.items() if name != "predicted"}
    if predicted:  # of the other run; what the text holds is the same
        facts["predicted"] = {name: share * predicted[name] for name in ("tokens", "epochs") if name in predicted}
    return replace(
        config,
        name=config.teacher_root.name,
        resume="never" if config.resume == "never" else "auto",
        distill=replace(config.distill, born_again=0.0),
        components={name: options for name, options in config.components.items() if name != "quantization"},
        facts=facts,
        train=replace(
            train,
            max_steps=max(1, math.ceil(share * train.max_steps)),
            max_minutes=None if train.max_minutes is None else share * train.max_minutes,
            seed=train.seed + 1,
            qat=None,
            patience=0,
        ),
    )


def taught(config: RunConfig, first: RunConfig, state: dict[str, Any], spent: float = 0.0) -> RunConfig:
    """The second run, given the ``state`` that the first one has ended with.

    ``spent``: seconds that the first took of this process, where they are known.
    """
    train = config.train
    used = max(state["elapsed_s"] + state["setup_s"], spent)
    minutes = None if train.max_minutes is None else train.max_minutes - used / 60
    if minutes is not None and minutes <= 0:
        raise UserError(
            f"{first.root} has taken all of the time that both runs may take: give more time (budget= or "
            "train.max_minutes=)"
        )
    return replace(
        config,
        distill=replace(config.distill, born_again=0.0, teacher=str(first.root)),
        tokenizer=replace(config.tokenizer, kind="file", path=str(first.root / TOKENIZER)),
        train=replace(
            train,
            max_steps=max(1, train.max_steps - state["step"]),
            max_minutes=minutes,
            phases=tuple(each for each in train.phases if each.bags == 1),  # a teacher predicts single tokens
        ),
    )


def _end_of(first: RunConfig) -> dict[str, Any] | None:
    """The state with which the first run has ended; None where it has not. The second run checks its weights."""
    checkpoints = list_checkpoints(first.root)
    if not checkpoints:
        return None
    state = _state(checkpoints[-1])
    return state if state and finished(first, make_components(first), state) else None


def _state(checkpoint: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads((checkpoint / TRAINER_STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found
