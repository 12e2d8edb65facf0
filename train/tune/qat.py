"""``python -m slm.train.tune.qat base=runs/mine train.qat=q4_0``: a trained model, continued for a quantized type.

It is a training run that starts from the base (``init_from``), reads the base's own text in another order, and computes
with quantized weights from its first step (``components.quantization.share`` is 1). Its export of that type holds these
very weights.

Tested in tests/train/tune/test_qat.py.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from slm import cli
from slm.configuration import build, load_config
from slm.data.config import DataConfig
from slm.data.errors import UserError
from slm.model.checkpoint import TRAINER_STATE
from slm.runs import Run, saved_config
from slm.train import autobatch
from slm.train.config import RunConfig
from slm.train.resolve import ChooseMicroBatch, resolve
from slm.train.tune import processes as several
from slm.train.tune import recipe
from slm.train.tune.config import QatConfig

DEFAULT_TYPE = "q4_0"
FEWEST_STEPS = 20
STEPS = 200
"""Optimizer steps on a model from elsewhere: how many it had is not known."""
KEPT = ("seq_len", "micro_batch", "grad_accum", "eval_blocks", "mask_documents", "gradient_checkpointing")
"""Options of the base's training that its continuation keeps."""
SHOWN = ("train.qat", "train.max_steps", "optim.lr", "train.seq_len", "train.micro_batch", "train.grad_accum")


def main(argv: list[str]) -> int:
    """Choose the options, then train. Returns the exit code."""
    return several.run(argv, "slm.train.tune.qat", continuing)


def continuing(
    argv: list[str],
    *,
    processes: int = 1,
    choose: ChooseMicroBatch = autobatch.choose_micro_batch,
    log: Callable[[str], None] = print,
) -> RunConfig:
    """The run's configuration: what ``argv`` says, and for the rest what the base calls for.

    The parameters: as ``several.Configure`` has them.
    """
    # A micro-batch to be measured leaves the step as it is.
    names = {word.partition("=")[0] for word in argv if word != "train.micro_batch=auto"}
    given = names.__contains__
    own = build(QatConfig, load_config("qat", recipe.without_auto(argv), literal=("base",)))
    if not own.base:
        raise UserError(
            f"no model to continue is named: `{cli.spelled('qat', base='runs/NAME')}`, or a Hugging Face model "
            "directory"
        )
    run, directory = recipe.base_of(own.base)
    kind = own.train.qat or DEFAULT_TYPE
    saved = saved_config(run.root)
    options = recipe.start_from(run, directory, lr_scale=own.qat.lr_scale, given=given, optim=own.optim.name)
    options |= {"optim.schedule": "linear", "optim.decay_fraction": 1.0, "optim.warmup_steps": 0}
    options |= {"optim.min_lr_ratio": 0.0, "name": f"{run.name}-{kind}", "train.qat": kind}
    options |= {"+components.quantization.share": 1.0, "+components.quantization.least_steps": 0}
    if train := saved.get("train"):
        options |= {f"train.{name}": train[name] for name in KEPT if name in train}
        options["train.seed"] = train["seed"] + 1  # the text in another order
    done = _steps_done(directory)
    steps = STEPS if done is None else max(FEWEST_STEPS, round(own.qat.steps_share * done))
    options["train.max_steps"] = own.train.max_steps if given("train.max_steps") else steps
    options |= recipe.together(own.train, max(10, options["train.max_steps"] // 4), given=given)
    options |= several.shared_step(options, own.train, processes, given=given)
    options = {name: value for name, value in options.items() if not given(name)}
    typed = [word for word in argv if not word.startswith(("base=", "qat."))]
    config = resolve([*recipe.words(options), *typed], choose)
    if not given("data"):
        typed_data = {
            name: getattr(config.data, name)
            for name in (each.removeprefix("data.") for each in names if each.startswith("data."))
        }
        config = replace(config, data=replace(_own_text(run, saved), **typed_data))
    shown = {name: getattr(getattr(config, name.split(".")[0]), name.split(".")[1]) for name in SHOWN}
    if line := run.choice_line():
        log(line)
    log(f"continuing {directory}: " + " ".join(f"{name}={value}" for name, value in shown.items()))
    return config


def _own_text(run: Run, saved: dict[str, Any]) -> DataConfig:
    if "data" not in saved:
        raise UserError(
            f"{run.root} is not a run of slm, so its text is not known: name some, for example data=local "
            "'data.files=[text.jsonl]'"
        )
    return build(DataConfig, saved["data"])


def _steps_done(directory: Path) -> int | None:
    """The optimizer steps of the base; None for a model from elsewhere."""
    try:
        return int(json.loads((directory / TRAINER_STATE).read_text(encoding="utf-8"))["step"])
    except (OSError, ValueError, KeyError):
        return None


if __name__ == "__main__":
    cli.run(main)
