"""The start of a run: its directory, tokenizer and model are opened or made, then the trainer takes over."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from slm.model import checkpoint
from slm.model.transformer import LanguageModel
from train.config import RunConfig
from train.distributed.ranks import Ranks, restarts
from train.distributed.shared_state import shared_start, shared_tokenizer
from train.environment import Environment, prepare
from train.memory import check_memory
from train.model_shape import starting_shape
from train.run import run_dir
from train.run_lock import take_lock
from train.trainer import Trainer


def start(config: RunConfig, root: Path, ranks: Ranks) -> int:
    """Train in ``root``, from the beginning or from a checkpoint. Returns the command's exit code.

    ``root`` is the run's directory on rank 0, and a folder that is thrown away on the others.
    """
    with ExitStack() as until_the_end:
        ranks.first(lambda: config.train.check_processes(ranks.size))
        resume = ranks.first(lambda: _open_directory(config, root, until_the_end))
        environment = _environment(config, ranks)
        begin = shared_start(ranks, lambda: _find_start(config, resume, root))
        if begin.checkpoint and _finished(config, begin.state):
            print(
                f"{root} is finished: step {begin.state['step']:,} of {config.train.max_steps:,}. To train it further "
                "raise train.max_steps (or train.max_minutes); for a new run give name=... or resume=never"
            )
            return 0
        tokenizer = shared_tokenizer(ranks, lambda: run_dir.run_tokenizer(config, root), root / "tokenizer")
        ranks.first(lambda: run_dir.keep_texts(config, root))
        model, warning = _new_model(config, tokenizer.vocab_size, tokenizer.eot_id, ranks)
        run_dir.write_config(config, root)
        _print_plan(config, model, tokenizer.vocab_size, environment, warning, ranks)
        trainer = Trainer(config, root, model, tokenizer, environment, begin, ranks)
        code = trainer.run()
        print(f"{root}: {trainer.summary()}")
        if code == 0:
            print(f"next: make export RUN={root}    then: make serve MODEL={root}")
        return code


def _open_directory(config: RunConfig, root: Path, until_the_end: ExitStack) -> str:
    """Make the run's directory and lock it for this process. Returns ``config.resume``, or ``auto`` after a restart."""
    resume = config.resume
    if count := restarts():  # not a new start: go on with what this run has saved
        print(f"restart {count}: a process of this run had ended")
        resume = "auto"
    if resume == "never" and (root / "config.yaml").exists():
        print(f"{root} is kept as {run_dir.set_aside(root)}")
    root.mkdir(parents=True, exist_ok=True)
    lock = take_lock(root)
    until_the_end.callback(lock.release)
    run_dir.sweep(root)
    return resume


def _environment(config: RunConfig, ranks: Ranks) -> Environment:
    """This process prepared for training, in the number format that rank 0 found faster."""
    environment = prepare(config.train, threads=ranks.threads)
    if (precision := ranks.first(lambda: environment.precision)) != environment.precision:
        environment = prepare(config.train, threads=ranks.threads, precision=precision)
    return environment


def _find_start(config: RunConfig, resume: str, root: Path) -> run_dir.Start:
    """The checkpoint to resume from, if any, checked against the configuration."""
    begin = run_dir.find_start(resume, root, print)
    if begin.checkpoint:
        run_dir.check_same(begin.state["config"], config, root)
        if not _finished(config, begin.state):
            for name in run_dir.set_aside_later(root, begin.checkpoint):
                print(f"{name} is newer than {begin.checkpoint.name} and is kept aside")
            print(f"resuming {root} from {begin.checkpoint.name}")
    return begin


def _finished(config: RunConfig, state: dict[str, Any]) -> bool:
    minutes = config.train.max_minutes
    by_time = minutes is not None and state["elapsed_s"] >= 60 * minutes
    return by_time or state["step"] >= config.train.max_steps


def _new_model(config: RunConfig, vocab_size: int, eot_id: int, ranks: Ranks) -> tuple[LanguageModel, str | None]:
    """The model with its first weights, the same on every rank, and a warning where memory may be too small."""
    train = config.train
    torch.manual_seed(train.seed)
    if config.init_from:
        directory = config.init_from
        shape = ranks.first(lambda: starting_shape(directory, train.seq_len))
        warning = check_memory(shape, train)
        model = checkpoint.load_model(directory) if ranks.main else LanguageModel(shape)
    else:
        shape = config.model.model_config(vocab_size=vocab_size, seq_len=train.seq_len, eos_id=eot_id)
        warning = check_memory(shape, train)
        model = LanguageModel(shape)
    model.train()
    ranks.spread(list(model.parameters()))
    return model, warning


def _print_plan(
    config: RunConfig,
    model: LanguageModel,
    vocab_size: int,
    environment: Environment,
    warning: str | None,
    ranks: Ranks,
) -> None:
    flops = model.config.flops_per_token(config.train.seq_len)
    print(
        f"{config.root.name}: {model.config.n_params:,} parameters, vocabulary {vocab_size:,}, "
        f"{flops / 1e6:,.0f} MFLOP per token (6N + causal attention), "
        f"{config.train.tokens_per_step:,} tokens per step, {environment.threads} threads"
        + (f" in each of {ranks.size} processes" if ranks.size > 1 else "")
    )
    for note in (*environment.notes, *filter(None, [warning])):
        print(f"  {note}")
