"""``python -m train``: one training run, started or gone on with."""

from pathlib import Path
from typing import Any

from data.errors import UserError, nearest
from slm import cli
from slm.configuration import build, choices, load_config
from slm.hardware import share_cores


def main(argv: list[str]) -> int:
    """Compose the configuration, find or make the run's directory, train. Returns the exit code."""
    resolved = load_config("train", argv)
    config = _config(resolved)
    share_cores()
    # From here on it takes seconds to import: wrong options have been told by now.
    import torch

    from slm import checkpoint
    from slm.model import LanguageModel
    from train import rundir
    from train.environment import prepare
    from train.loop import Trainer, write_config

    root = Path(config.runs_dir) / config.name
    if config.resume == "never" and (root / "config.yaml").exists():
        print(f"{root} is kept as {rundir.set_aside(root)}")
    root.mkdir(parents=True, exist_ok=True)
    lock = rundir.RunLock(root)
    environment = prepare(config.train)
    start = rundir.find_start(config, root, print)
    if start.checkpoint:
        rundir.check_same(start.state["config"], resolved, root)
        if _finished(config, start.state):
            print(
                f"{root} is finished: step {start.state['step']:,} of {config.train.max_steps:,}. To train it further "
                "raise train.max_steps (or train.max_minutes); for a new run give name=... or resume=never"
            )
            return 0
        for name in rundir.set_aside_later(root, start.checkpoint):
            print(f"{name} is newer than {start.checkpoint.name} and is kept aside")
        print(f"resuming {root} from {start.checkpoint.name}")
    tokenizer = rundir.run_tokenizer(config, root)
    rundir.keep_texts(config, root)

    torch.manual_seed(config.train.seed)
    if config.init_from:
        model = checkpoint.load_model(config.init_from).train()
        if config.train.seq_len > model.config.seq_len:
            raise UserError(
                f"train.seq_len={config.train.seq_len} is longer than the context of {config.init_from}: "
                f"use train.seq_len={model.config.seq_len} or less"
            )
    else:
        shape = config.model.model_config(
            vocab_size=tokenizer.vocab_size, seq_len=config.train.seq_len, eos_id=tokenizer.eot_id
        )
        model = LanguageModel(shape).train()
    model.gradient_checkpointing = config.train.gradient_checkpointing
    write_config(root, resolved)

    flops = model.config.flops_per_token(config.train.seq_len)
    print(
        f"{config.name}: {model.config.n_params:,} parameters, vocabulary {tokenizer.vocab_size:,}, "
        f"{flops / 1e6:,.0f} MFLOP per token (6N + causal attention), "
        f"{config.train.tokens_per_step:,} tokens per step, {environment.threads} threads"
    )
    for note in environment.notes:
        print(f"  {note}")
    trainer = Trainer(config, resolved, root, model, tokenizer, environment, start)
    code = trainer.run()
    print(f"{root}: {trainer.summary()}")
    if code == 0:
        print(f"next: make export RUN={root}    then: make serve MODEL={root}")
    del lock
    return code


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
