"""What a run says before its first step and after its last.

Tested in tests/train/test_main.py.
"""

from pathlib import Path

from slm.cli import spelled
from slm.model.transformer import LanguageModel
from slm.runs import Run
from slm.train.beginning.data import RunData
from slm.train.config import RunConfig
from slm.train.distributed.ranks import Ranks
from slm.train.environment import Environment
from slm.train.run.run_state import RunState


def print_plan(
    config: RunConfig,
    model: LanguageModel,
    vocab_size: int,
    environment: Environment,
    notes: tuple[str | None, ...],
    ranks: Ranks,
) -> None:
    flops = config.train.flops_per_token(model.config)
    print(
        f"{config.root.name}: {model.config.n_params:,} parameters, vocabulary {vocab_size:,}, "
        f"{flops / 1e6:,.0f} MFLOP per token (6N + causal attention), "
        f"{config.train.tokens_per_step:,} tokens per step, {environment.threads} thread"
        + ("s" if environment.threads > 1 else "")
        + (f" in each of {ranks.size} processes" if ranks.size > 1 else "")
    )
    short = short_run(config.train.max_steps, config.optim.warmup_steps)
    for note in (*environment.notes, *filter(None, [*notes, short])):
        print(f"  {note}")


def small_vocabulary(config: RunConfig, size: int) -> str | None:
    """A line where the text that a new tokenizer was trained on had too few pairs for the ids that were asked for."""
    asked = config.tokenizer
    if not asked.trained or config.init_from is not None or size >= asked.vocab_size:
        return None
    lacks = f"pairs of tokens that come {asked.min_frequency} times (tokenizer.min_frequency)"
    return (
        f"{size:,} of tokenizer.vocab_size={asked.vocab_size} ids: the text that the tokenizer was trained on "
        f"(tokenizer.sample_bytes={asked.sample_bytes}) has no more {'pieces' if asked.kind == 'unigram' else lacks}"
    )


def not_calibrated(config: RunConfig, data: RunData) -> str | None:
    """A line where there is too little text to calibrate a head with."""
    if not config.calibrates_head or len(data.kept_blocks):
        return None
    return (
        "the head is not calibrated (train.calibrate_head): the training text that is kept for it is less than one "
        f"sequence of {config.train.seq_len} tokens"
    )


def short_run(steps: int, warmup: int) -> str | None:
    """A line where the run ends before its learning rate has reached its height."""
    if steps > warmup:
        return None
    return (
        f"the run ends in its warm-up: {steps:,} steps with optim.warmup_steps={warmup:,}, so the learning rate never "
        f"reaches optim.lr; give optim.warmup_steps={steps // 10} or more train.max_steps"
    )


def risen_line(config: RunConfig, state: RunState) -> str:
    """What a run says at its end if its validation loss has risen."""
    others = "" if config.budget else "; budget= chooses what fits text and time"
    return (
        f"the validation loss was down at {state.best_loss:.4f} nats per token and rose to "
        f"{state.validation['val_loss']:.4f}: the model learnt its text by heart, or its rate is too high. "
        "More text, fewer steps (train.max_steps=), more decay (optim.weight_decay=) or a lower rate (optim.lr=) "
        f"end lower{others}"
    )


def next_line(root: Path) -> str:
    """What can be done with a run that has ended, and which checkpoint that takes where it is not the newest."""
    run = Run(root=root)
    note = f"    ({run.checkpoint().name} has the lowest validation loss)" if run.choice_line() else ""
    return f"next: {spelled('export', run=root)}    then: {spelled('serve', model=root)}{note}"
