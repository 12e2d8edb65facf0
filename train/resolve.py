"""From the command line to the one configuration of a run, and to the shape of its model. Nothing is written, and torch
is not imported.

Tested in tests/train/test_resolve.py, tests/train/tools/test_plan.py.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from slm.cli import spelled
from slm.configuration import build, items, load_config
from slm.data.config import TokenizerConfig
from slm.data.errors import UserError, nearest
from slm.data.sources.prepared import manifest
from slm.durations import seconds_of
from slm.hub import models
from slm.model.config import ModelConfig
from slm.options import choices
from slm.runs import CONFIG, continued_config, place
from slm.train.config import RESHARD, RunConfig

ChooseMicroBatch = Callable[[RunConfig], RunConfig]
AUTO = "auto"
"""The preset of a run with a size that is chosen for its ``budget``."""
NO_STEP_LIMIT = 1_000_000
"""``train.max_steps`` of a named preset with a ``budget``: time alone ends the run."""


@dataclass(frozen=True)
class Chosen:
    """What was chosen for a budget."""

    words: list[str]
    """Options as on the command line; those that a person gave come after them and win."""
    facts: dict[str, Any]
    """What the configuration's ``facts`` keep of the choice."""


ChooseForBudget = Callable[[list[str], float], Chosen]


def resolve(
    argv: list[str], choose_micro_batch: ChooseMicroBatch, choose_for_budget: ChooseForBudget | None = None
) -> RunConfig:
    """Training's options in ``argv`` as a checked configuration; UserError for what a person can mend.

    A run that starts from a downloaded model (``init_from``) has the classic optimizer unless ``optim=`` names another:
    Muon's learning rates are for new models. The run's name is filled in, and with ``resume=CHECKPOINT`` its
    directory. For ``train.micro_batch=auto`` ``choose_micro_batch`` divides an optimizer step's sequences into passes;
    it is given the configuration without that option.

    A ``budget`` becomes ``train.max_minutes``. With ``preset=auto``, or without a preset,
    ``choose_for_budget`` chooses what is not given; where there is none (several processes) a preset must be named.

    With ``resume=RUN`` the options are that run's, except what ``argv`` gives.
    """
    if root := _continued_root(argv):
        return with_corpus_tokenizer(_continued(root, argv))
    typed = argv
    argv, facts = _within_budget(argv, choose_for_budget)
    if _says(argv, "init_from") and not _says(argv, "optim"):
        argv = ["optim=adamw", *argv]
    composed = load_config("train", argv)
    automatic = composed["train"]["micro_batch"] == "auto"
    if automatic:
        composed = load_config("train", [word for word in argv if word != "train.micro_batch=auto"])
    config = with_corpus_tokenizer(with_run_directory(build(RunConfig, composed)))
    _check(config)
    _check_beside_corpus(config, typed)
    if config.init_from:
        config = replace(config, init_from=models.directory(config.init_from))
    if facts is not None:
        config = replace(config, preset=AUTO, facts={**config.facts, **facts})
    return choose_micro_batch(config) if automatic else config


def given_value(argv: list[str], key: str) -> str | None:
    """The last value that the command line gives ``key``; None where it gives none, or null."""
    values = [value for name, sign, value in (word.partition("=") for word in argv) if sign and name == key]
    return values[-1] if values and values[-1] not in ("null", "") else None


def _says(argv: list[str], key: str) -> bool:
    """Whether the command line gives ``key`` a value other than null."""
    return given_value(argv, key) is not None


def _within_budget(argv: list[str], choose: ChooseForBudget | None) -> tuple[list[str], dict[str, Any] | None]:
    """``argv`` with the options that its budget stands for, and the facts of a choice where one was made."""
    budget, preset = given_value(argv, "budget"), given_value(argv, "preset")
    if budget is None:
        if preset == AUTO:
            raise UserError(f"preset=auto needs the time that the run may take: {spelled('train', budget='8h')}")
        return argv, None
    seconds = seconds_of(budget)
    limits = [f"train.max_minutes={seconds / 60!r}"]
    if preset not in (None, AUTO) or _says(argv, "init_from"):
        own = [word for word in argv if word != f"preset={AUTO}"]
        return [*limits, f"train.max_steps={NO_STEP_LIMIT}", *own], None
    if choose is None:
        raise UserError(
            "only a single run chooses its settings for a budget; several processes and sweeps need a preset: add "
            f"preset=10m (or tiny, 50m, ...) to budget={budget}"
        )
    chosen = choose(argv, seconds)
    own = [word for word in argv if not word.startswith("preset=")]
    return ["preset=tiny", *limits, *chosen.words, *own], chosen.facts


def _continued_root(argv: list[str]) -> Path | None:
    """The directory of the run that ``resume`` names; None where it names none."""
    given = given_value(argv, "resume")
    if given is None or given in ("auto", RESHARD, "never"):
        return None
    root = place(items(given)[0])
    if not (root / "checkpoints").is_dir() and not (root / CONFIG).is_file():
        return None  # a checkpoint
    return root.resolve() if root.is_symlink() else root


def _continued(root: Path, argv: list[str]) -> RunConfig:
    """The configuration of the run in ``root``, with what ``argv`` gives. A ``budget`` is its time in all."""
    saved, budget = continued_config(root), given_value(argv, "budget")
    own = [word for word in argv if not word.startswith(("resume=", "budget="))]
    composed = load_config("train", own)
    for word in own:
        key = word.partition("=")[0].lstrip("+")
        if key == "preset" and (os.environ.get("SLM_MAKE") or composed[key] == saved.get(key)):
            continue  # the targets of make always give one
        if key in ("preset", "name", "runs_dir"):
            raise UserError(f"resume={root} goes on with that run under its own name: leave {word} out")
        *groups, name = key.split(".")
        new, old = composed, saved
        for group in groups:
            new, old = new[group], old.setdefault(group, {})
        old[name] = new[name]
    if budget:
        if saved["train"].get("max_minutes") is None and given_value(argv, "train.max_steps") is None:
            saved["train"]["max_steps"] = NO_STEP_LIMIT
        saved["train"]["max_minutes"] = seconds_of(budget) / 60
        saved["budget"] = budget
    config = build(RunConfig, saved)
    _check(config)
    return replace(config, name=root.name, runs_dir=str(root.parent), resume="auto")


def with_run_directory(config: RunConfig) -> RunConfig:
    """``config`` with a name. Without one, the path of a checkpoint to resume from gives the run's directory."""
    if config.name is None and config.resume not in ("auto", RESHARD, "never"):
        checkpoint = Path(config.resume)
        checkpoint = checkpoint.resolve() if checkpoint.exists() else checkpoint  # runs/mine/best is a link to one
        if checkpoint.parent.name == "checkpoints":
            run = checkpoint.parent.parent
            return replace(config, name=run.name, runs_dir=str(run.parent))
    return replace(config, name=config.root.name)


def with_corpus_tokenizer(config: RunConfig) -> RunConfig:
    """``config`` with the tokenizer of its prepared corpus, if its text is one."""
    if not config.data.prepared:
        return config
    manifest.load(config.data.prepared)
    path = os.path.join(config.data.prepared, manifest.TOKENIZER)
    return replace(config, tokenizer=TokenizerConfig(kind="file", path=path))


def _check_beside_corpus(config: RunConfig, argv: list[str]) -> None:
    """UserError for a word of the command line that has no meaning for a text that is prepared."""
    folder = config.data.prepared
    for word in argv if folder else ():
        key = word.partition("=")[0].lstrip("+")
        group, _, name = key.partition(".")
        if group == "tokenizer" or (group == "data" and name and name not in manifest.AT_TRAINING):
            if group == "data" and name in manifest.WITHOUT_EFFECT:
                continue
            raise manifest.refusal(key, folder)


def require_wandb() -> None:
    """UserError where the package is not installed."""
    if find_spec("wandb") is None:
        raise UserError("logger=wandb needs the wandb package: pip install 'slm[logging]'")


def _check(config: RunConfig) -> None:
    """The preset's name and the widths, before anything is downloaded or trained."""
    if config.logger == "wandb":
        require_wandb()
    if not config.init_from:
        config.model.model_config(vocab_size=256, seq_len=config.train.seq_len, eos_id=None)
    if config.preference.loss == "dpo" and not config.init_from:
        raise UserError("preference.loss=dpo compares with the model that it starts from: name it with init_from=DIR")
    if config.distill.teacher == "self" and not config.init_from:
        raise UserError("distill.teacher=self is the model that the run starts from: name it with init_from=DIR")
    if config.preset not in choices("preset"):
        raise UserError(f"there is no preset {config.preset!r}; {nearest(config.preset, choices('preset'))}")


TIKTOKEN_IDS = {"gpt2": 50_257, "r50k_base": 50_257, "p50k_base": 50_281, "cl100k_base": 100_277, "o200k_base": 200_019}


def model_shape(config: RunConfig) -> ModelConfig:
    """The model of a configuration before its tokenizer exists: the settings give the vocabulary's size, or the model
    that the run starts from gives all.

    A tokenizer that is neither trained here nor listed in ``TIKTOKEN_IDS`` is loaded to count its ids.
    """
    if config.init_from:
        from slm.hub.models import directory
        from slm.model.checkpoint import load_config

        return replace(load_config(directory(config.init_from)), seq_len=config.train.seq_len)
    tokenizer = with_corpus_tokenizer(config).tokenizer
    if tokenizer.trained:
        ids = tokenizer.vocab_size
    elif tokenizer.kind == "tiktoken" and tokenizer.name in TIKTOKEN_IDS:
        ids = TIKTOKEN_IDS[tokenizer.name]
    else:
        from slm.data.tokenizers.make import load_tokenizer, make_tokenizer

        path = Path(tokenizer.path) if tokenizer.path else None
        ids = (load_tokenizer(path) if path else make_tokenizer(tokenizer, lambda: iter(()))).vocab_size
    return config.model.model_config(vocab_size=ids, seq_len=config.train.seq_len, eos_id=None)
