"""From the command line to the one configuration of a run. Nothing is written, and torch is not imported."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from data.errors import UserError, nearest
from slm.configuration import build, choices, load_config
from train.config import RunConfig

ChooseMicroBatch = Callable[[RunConfig], RunConfig]


def resolve(argv: list[str], choose_micro_batch: ChooseMicroBatch) -> RunConfig:
    """Training's options in ``argv`` as a checked configuration; UserError for what a person can mend.

    A run that starts from a downloaded model (``init_from``) has the classic optimizer unless ``optim=`` names another:
    Muon's learning rates are those of new models. The run's name is filled in, and with ``resume=CHECKPOINT`` its
    directory. For ``train.micro_batch=auto`` ``choose_micro_batch`` divides an optimizer step's sequences into passes;
    it is given the configuration without that option.
    """
    if _says(argv, "init_from") and not _says(argv, "optim"):
        argv = ["optim=classic", *argv]
    composed = load_config("train", argv)
    automatic = composed["train"]["micro_batch"] == "auto"
    if automatic:
        composed = load_config("train", [word for word in argv if not word.startswith("train.micro_batch=")])
    config = _with_run_directory(build(RunConfig, composed))
    _check(config)
    return choose_micro_batch(config) if automatic else config


def _says(argv: list[str], key: str) -> bool:
    """Whether the command line gives ``key`` a value other than null."""
    values = [value for name, sign, value in (word.partition("=") for word in argv) if sign and name == key]
    return bool(values) and values[-1] not in ("null", "")


def _with_run_directory(config: RunConfig) -> RunConfig:
    """``config`` with a name. Without one, the path of a checkpoint to resume from gives the run's directory."""
    if config.name is None and config.resume not in ("auto", "never"):
        checkpoint = Path(config.resume)
        if checkpoint.parent.name == "checkpoints":
            run = checkpoint.parent.parent
            return replace(config, name=run.name, runs_dir=str(run.parent))
    return replace(config, name=config.root.name)


def _check(config: RunConfig) -> None:
    """The preset's name and the widths, before anything is downloaded or trained."""
    if not config.init_from:
        config.model.model_config(vocab_size=256, seq_len=config.train.seq_len, eos_id=None)
    if config.preset not in choices("preset"):
        raise UserError(f"there is no preset {config.preset!r}; {nearest(config.preset, choices('preset'))}")
