"""``python -m slm.train.tune base=runs/demo data=chat 'data.files=[chats.jsonl]'``: a model tuned on conversations.

It is a training run that starts from the base (``init_from``), with the options that the base and the conversations
call for. The options that were chosen are printed; every one can be set instead.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from slm import cli
from slm.configuration import build, load_config
from slm.data.account.listing import show_files
from slm.data.errors import UserError
from slm.durations import seconds_of
from slm.model import checkpoint
from slm.train import autobatch
from slm.train.config import RunConfig, TrainConfig
from slm.train.resolve import ChooseMicroBatch, resolve
from slm.train.tune import lines, recipe, rule
from slm.train.tune import look as looked
from slm.train.tune import processes as several
from slm.train.tune.config import TuneConfig
from slm.train.tune.own_answers import own_answers

SHOWN = ("optim.lr", "optim.warmup_steps", "train.seq_len", "train.pack_tokens", "train.max_steps", "train.patience")


def main(argv: list[str]) -> int:
    """Choose the options, then train. Returns the exit code."""
    return several.run(argv, "slm.train.tune", tuning, lines.end)


def tuning(
    argv: list[str],
    *,
    processes: int = 1,
    choose: ChooseMicroBatch = autobatch.choose_micro_batch,
    log: Callable[[str], None] = print,
) -> RunConfig:
    """The run's configuration: what ``argv`` says, and for the rest what the base and the conversations call for.

    The parameters: as ``several.Configure`` has them.
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
    pairs = own.preference.on
    options = recipe.recipe(run, directory, own.tune, given=given, preference=own.preference.loss, optim=own.optim.name)
    replay = recipe.replay_share(run, own.tune, pairs=pairs)
    answers = None
    if share := recipe.answers_share(run, own.tune, pairs=pairs):
        answers = own_answers(directory, log)
        replay = share if answers or own.tune.replay else 0.0  # what was asked for and cannot be is an error below
    shape = checkpoint.load_config(directory)
    if not (pairs or own.tune.lora or given("optim")):
        fitted, line = recipe.within_memory(shape, options)
        options = fitted or options
        if line:
            log(line)
    show_files(own.data, log)
    found = looked.look(
        own.data,
        directory,
        longest=own.train.seq_len if given("train.seq_len") else rule.longest(shape.seq_len),
        seed=own.train.seed,
        pairs=pairs,
    )
    seen = found if isinstance(found, looked.Look) else None
    apart = _held_out(own, seen, given)
    choice = rule.choose(
        rule.Findings(
            conversations=seen.distinct if seen else None,
            lengths=seen.lengths if seen else (),
            shared=seen.shared if seen else 0,
            n_params=shape.n_params,
            context=shape.seq_len,
            optimizer="muon" if options.get("optim", own.optim.name) == "muon" else "adamw",
            replay=replay,
            processes=processes,
            equal=processes > 1 or "train.micro_batch" in words or given("train.grad_accum"),
            seconds=_seconds(own),
            seq_len=own.train.seq_len if given("train.seq_len") else None,
            rows=_rows(own.train, given),
            pack_tokens=own.train.pack_tokens if given("train.pack_tokens") else None,
            passes=own.data.max_epochs if given("data.max_epochs") else None,
            steps=own.train.max_steps if given("train.max_steps") else None,
            adapter=own.tune.lora > 0,
            frozen=recipe.frozen_share(run, own.tune, pairs=pairs, processes=processes),
            held_out=apart,
        )
    )
    learns = choice.patience > 0 and not (pairs or given("train.patience"))
    if given("train.patience"):
        choice = replace(choice, patience=own.train.patience)
    options |= _options(choice, seen)
    once = seen is not None and seen.copied and not given("data.dedup")
    if once:
        options["data.dedup"] = "exact"
    if recipe.FROM_ELSEWHERE.items() <= options.items():  # no betas of the base's own
        options["optim.betas"] = f"[0.9,{choice.beta2:g}]"
        options["optim.lr"] = float(f"{options['optim.lr'] * choice.lr_ratio:.3g}")
    options |= recipe.together(own.train, choice.eval_every, given=given)
    if not choice.patience and not given("train.eval_every"):  # no earlier model would be taken: one checkpoint
        options |= {"train.eval_every": choice.eval_every, "train.checkpoint_every": choice.max_steps}
    counted = {"data.max_epochs"} if seen else set[str]()  # passes have become steps
    if given("train.max_steps") and choice.max_steps < own.train.max_steps:
        counted.add("train.max_steps")
        log(
            f"data.max_epochs={own.data.max_epochs:g} has {choice.max_steps:,} updates, fewer than train.max_steps="
            f"{own.train.max_steps:,}: the run has these, and its learning rate falls to zero by then"
        )
    options = {name: value for name, value in options.items() if not given(name) or name in counted}
    own_words = ("base=", "tune.", *(f"{name}=" for name in counted))
    typed = [word for word in argv if not word.startswith(own_words)]
    config = resolve([*recipe.words(options), *typed], choose)
    if not given("train.gradient_checkpointing"):
        config, line = recipe.recomputed(config, shape)
        if line:
            log(line)
    if answers:
        config = replace(config, data=recipe.with_answers(config.data, answers, replay))
    elif replay:
        config = replace(config, data=recipe.with_replay(config.data, run, replay))
    held_out = (
        config.data.val_fraction or config.data.val_files
    )  # does not say what training conversations are forgotten
    if recipe.forgets(run, own.tune, pairs=pairs) and (own.tune.kept is not None or not held_out):
        config = replace(config, components={**config.components, "interpolation": {"kept": own.tune.kept}})
    if learns:
        config = replace(config, components={**config.components, "patience": {"learns": True}})
    if choice.frozen:
        config = replace(config, components={"frozen": {"share": choice.frozen}, **config.components})
    if found:
        log(found if isinstance(found, str) else found.line)
    limit = config.train.max_minutes
    log(lines.plan(choice, seen, max_minutes=limit, held_out=apart, once=once, learns=learns))
    names = ("lora.rank", *SHOWN) if config.lora.rank else SHOWN
    shown = {name: getattr(getattr(config, name.split(".")[0]), name.split(".")[1]) for name in names}
    options_shown = " ".join(f"{name}={value}" for name, value in shown.items())
    if seen:
        facts = {"conversations": seen.distinct, "records": seen.records, "passes": choice.passes}
        config = replace(config, facts={**config.facts, "tune": facts})
    if line := run.choice_line():
        log(line)
    log(f"tuning {directory}: {options_shown} tune.replay={replay:g}")
    return config


def _seconds(own: RunConfig) -> float | None:
    """The time given."""
    if own.budget:
        return seconds_of(own.budget)
    return None if own.train.max_minutes is None else 60 * own.train.max_minutes


def _held_out(own: RunConfig, seen: looked.Look | None, given: Callable[[str], bool]) -> int | None:
    """How many different conversations a person holds out; None: the rule chooses."""
    if given("data.val_files"):
        return rule.LEAST_HELD_OUT if seen is None or seen.held_out is None else seen.held_out
    if given("data.val_fraction"):
        return rule.LEAST_HELD_OUT if seen is None else round(own.data.val_fraction * seen.distinct)
    return None


def _rows(train: TrainConfig, given: Callable[[str], bool]) -> tuple[int, int] | None:
    """``micro_batch`` and ``grad_accum`` where a person has set one of them."""
    if not (given("train.micro_batch") or given("train.grad_accum")):
        return None
    return train.micro_batch if given("train.micro_batch") else 1, train.grad_accum


def _options(choice: rule.Choice, seen: looked.Look | None) -> dict[str, Any]:
    """The options of what the rule says."""
    options: dict[str, Any] = {
        "train.seq_len": choice.seq_len,
        "train.pack_tokens": choice.pack_tokens,
        "train.micro_batch": choice.micro_batch,
        "train.grad_accum": choice.grad_accum,
        "train.max_steps": choice.max_steps,
        "train.eval_blocks": choice.eval_blocks,
        "train.patience": choice.patience,
        "optim.warmup_steps": choice.warmup_steps,
    }
    if seen:
        options["data.val_fraction"] = choice.val_fraction
        options["data.max_epochs"] = None  # the number of steps says how often the conversations are read
    return options


if __name__ == "__main__":
    cli.run(main)
