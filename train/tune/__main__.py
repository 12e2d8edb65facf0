"""``python -m train.tune base=runs/demo data=chat 'data.files=[chats.jsonl]'``: a model tuned on conversations.

It is a training run that starts from the base (``init_from``), with the options that the base and the conversations
call for. The options that were chosen are printed; every one can be set instead.
"""

from collections.abc import Callable
from dataclasses import replace

from data.account.listing import show_files
from data.errors import UserError
from slm import cli
from slm.configuration import build, load_config
from train import autobatch
from train.config import RunConfig
from train.resolve import ChooseMicroBatch, resolve
from train.tune import processes as several
from train.tune import recipe
from train.tune.config import TuneConfig

SHOWN = ("optim.lr", "optim.warmup_steps", "train.seq_len", "train.max_steps", "train.eval_every", "train.patience")


def main(argv: list[str]) -> int:
    """Choose the options, then train. Returns the exit code."""
    return several.run(argv, "train.tune", tuning)


def tuning(
    argv: list[str],
    *,
    processes: int = 1,
    choose: ChooseMicroBatch = autobatch.choose_micro_batch,
    log: Callable[[str], None] = print,
) -> RunConfig:
    """The run's configuration: what ``argv`` says, and for the rest what the base and the conversations call for.

    The parameters are those of ``several.Configure``.
    """
    words = dict(word.partition("=")[::2] for word in argv)

    def given(name: str) -> bool:
        return name in words and words[name] != "auto"  # a micro-batch to be measured leaves the step as it is

    if not given("data"):
        argv = [*argv, "data=story_chat"]
    for name, right in (("lora.rank", "tune.lora"), ("init_from", "base")):
        if given(name):
            raise UserError(f"a tuned run has {right}={words[name]} in place of {name}={words[name]}")
    own = build(TuneConfig, load_config("tune", recipe.without_auto(argv), literal=("base",)))
    if not own.base:
        raise UserError(
            f"no model to tune is named: `{cli.spelled('tune', base='runs/NAME')}`, or a Hugging Face model directory"
        )
    run, directory = recipe.base_of(own.base)
    options = recipe.recipe(run, directory, own.tune, given=given, preference=own.preference.loss, optim=own.optim.name)
    replay = recipe.replay_share(run, own.tune, pairs=own.preference.on)
    options |= several.shared_step(options, own.train, processes, given=given)
    options = {name: value for name, value in options.items() if not given(name)}
    typed = [word for word in argv if not word.startswith(("base=", "tune."))]
    config = resolve([*recipe.words(options), *typed], choose)
    show_files(config.data, log)
    steps, found = recipe.length(
        config.data,
        directory,
        tokens_per_step=config.train.tokens_per_step,
        seq_len=config.train.seq_len,
        seed=config.train.seed,
        pairs=config.preference.on,
    )
    if not given("train.max_steps"):
        options["train.max_steps"] = max(1, round(steps / (1 - replay)))
    steps = options.get("train.max_steps", config.train.max_steps)
    if not given("optim.warmup_steps"):
        options["optim.warmup_steps"] = min(recipe.WARMUP_STEPS, steps // 5)
    options |= recipe.together(config.train, max(10, steps // 10), given=given)
    config = resolve([*recipe.words(options), *typed], choose)
    if replay:
        config = replace(config, data=recipe.with_replay(config.data, run, replay))
    if found:
        log(found)
    names = ("lora.rank", *SHOWN) if config.lora.rank else SHOWN
    shown = {name: getattr(getattr(config, name.split(".")[0]), name.split(".")[1]) for name in names}
    options_shown = " ".join(f"{name}={value}" for name, value in shown.items())
    if line := run.choice_line():
        log(line)
    log(f"tuning {directory}: {options_shown} tune.replay={replay:g}")
    return config


if __name__ == "__main__":
    cli.run(main)
