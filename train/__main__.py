"""``python -m train``: one training run, started or gone on with."""

from pathlib import Path
from typing import Any

from data.errors import UserError, nearest
from slm import cli
from slm.configuration import build, choices, load_config
from slm.machine.hardware import share_cores
from train import autobatch


def main(argv: list[str]) -> int:
    """Compose the configuration, find or make the run's directory, train. Returns the exit code."""
    resolved = load_config("train", argv)
    share_cores()
    autobatch.resolve(resolved, argv)
    config = _config(resolved)
    # From here on it takes seconds to import: wrong options have been told by now.
    from train.distributed import ranks as distributed
    from train.memory import explained

    root = Path(config.runs_dir) / config.name
    ranks = distributed.join(pin=config.train.pin)
    if not ranks.main:
        config.logger.name = "none"

    def run() -> int:
        with distributed.own_root(ranks, root) as mine, explained(config.train, mine):
            return _train(config, resolved, mine, ranks)

    return distributed.guarded(ranks, run)


def _train(config: Any, resolved: dict[str, Any], root: Path, ranks: Any) -> int:
    import torch

    from slm.model import checkpoint
    from slm.model.transformer import LanguageModel
    from train.distributed.shared_state import shared_start, shared_tokenizer
    from train.environment import prepare
    from train.memory import check_memory
    from train.run import run_dir
    from train.trainer import Trainer, write_config

    ranks.first(lambda: config.train.check_processes(ranks.size))
    locks: list[Any] = []
    ranks.first(lambda: locks.append(_take(config, root)))
    config.train.threads = config.train.threads or ranks.threads
    environment = prepare(config.train)
    if (precision := ranks.first(lambda: environment.precision)) != environment.precision:
        config.train.precision = precision  # what rank 0 found faster
        environment = prepare(config.train)
    start = shared_start(ranks, lambda: _find_start(config, resolved, root))
    if start.checkpoint and _finished(config, start.state):
        print(
            f"{root} is finished: step {start.state['step']:,} of {config.train.max_steps:,}. To train it further "
            "raise train.max_steps (or train.max_minutes); for a new run give name=... or resume=never"
        )
        return 0
    tokenizer = shared_tokenizer(ranks, lambda: run_dir.run_tokenizer(config, root), root / "tokenizer")
    ranks.first(lambda: run_dir.keep_texts(config, root))

    torch.manual_seed(config.train.seed)
    if config.init_from:
        shape = ranks.first(lambda: _starting_shape(config))
        tight = check_memory(shape, config.train)
        model = (checkpoint.load_model(config.init_from) if ranks.main else LanguageModel(shape)).train()
    else:
        shape = config.model.model_config(
            vocab_size=tokenizer.vocab_size, seq_len=config.train.seq_len, eos_id=tokenizer.eot_id
        )
        tight = check_memory(shape, config.train)
        model = LanguageModel(shape).train()
    ranks.spread(list(model.parameters()))
    write_config(root, resolved)

    flops = model.config.flops_per_token(config.train.seq_len)
    print(
        f"{config.name}: {model.config.n_params:,} parameters, vocabulary {tokenizer.vocab_size:,}, "
        f"{flops / 1e6:,.0f} MFLOP per token (6N + causal attention), "
        f"{config.train.tokens_per_step:,} tokens per step, {environment.threads} threads"
        + (f" in each of {ranks.size} processes" if ranks.size > 1 else "")
    )
    for note in (*environment.notes, *filter(None, [tight])):
        print(f"  {note}")
    trainer = Trainer(config, resolved, root, model, tokenizer, environment, start, ranks)
    code = trainer.run()
    print(f"{root}: {trainer.summary()}")
    if code == 0:
        print(f"next: make export RUN={root}    then: make serve MODEL={root}")
    locks.clear()
    return code


def _take(config: Any, root: Path) -> Any:
    """The run's directory, made and locked for this process; what an earlier run left half-written is cleared."""
    from train.distributed import ranks as distributed
    from train.run import run_dir

    if count := distributed.restarts():  # not a new start: go on with what this run has saved
        print(f"restart {count}: a process of this run had ended")
        config.resume = "auto"
    if config.resume == "never" and (root / "config.yaml").exists():
        print(f"{root} is kept as {run_dir.set_aside(root)}")
    root.mkdir(parents=True, exist_ok=True)
    lock = run_dir.RunLock(root)
    run_dir.sweep(root)
    return lock


def _find_start(config: Any, resolved: dict[str, Any], root: Path) -> Any:
    """The checkpoint to go on from, if any, checked against the configuration."""
    from train.run import run_dir

    start = run_dir.find_start(config, root, print)
    if start.checkpoint:
        run_dir.check_same(start.state["config"], resolved, root)
        if not _finished(config, start.state):
            for name in run_dir.set_aside_later(root, start.checkpoint):
                print(f"{name} is newer than {start.checkpoint.name} and is kept aside")
            print(f"resuming {root} from {start.checkpoint.name}")
    return start


def _starting_shape(config: Any) -> Any:
    """The shape of the model that ``init_from`` names, checked against the sequence length."""
    from slm.model import checkpoint

    shape = checkpoint.load_config(config.init_from)
    if config.train.seq_len > shape.seq_len:
        raise UserError(
            f"train.seq_len={config.train.seq_len} is longer than the context of {config.init_from}: "
            f"use train.seq_len={shape.seq_len} or less"
        )
    return shape


def _config(resolved: dict[str, Any]) -> Any:
    """The checked configuration. The widths are checked here too, before anything is downloaded or trained."""
    from train.config import RunConfig

    config = build(RunConfig, resolved)
    if not config.init_from:
        config.model.model_config(vocab_size=256, seq_len=config.train.seq_len, eos_id=None)
    if config.preset not in choices("preset"):
        raise UserError(f"there is no preset {config.preset!r}; {nearest(config.preset, choices('preset'))}")
    if config.resume not in ("auto", "never"):
        checkpoint = Path(config.resume)
        named = checkpoint.parent.parent
        if resolved.get("name") is None and checkpoint.parent.name == "checkpoints":
            config.name, config.runs_dir = named.name, str(named.parent)
    return config


def _finished(config: Any, state: dict[str, Any]) -> bool:
    minutes = config.train.max_minutes
    by_time = minutes is not None and state["elapsed_s"] >= 60 * minutes
    return by_time or state["step"] >= config.train.max_steps


if __name__ == "__main__":
    cli.run(main)
