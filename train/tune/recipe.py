"""From the base to the options of its tuning: shape, optimizer and learning rates.

Everything is an ordinary option of training, so a person can set each one, and what is set stays. What follows from the
conversations is in ``rule.py``.

Tested in tests/train/tune/test_tune.py.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from slm.configuration import assigned, build
from slm.data.config import DataConfig, SourceConfig
from slm.data.errors import UserError
from slm.data.sources import files
from slm.hub import models
from slm.machine.memory import available_bytes
from slm.model import checkpoint
from slm.model.config import ModelConfig
from slm.runs import LATEST, Run, resolve, saved_config
from slm.train.config import WITHIN_BACKWARD, RunConfig, TrainConfig
from slm.train.memory import GIB, adapted_bytes, expected_value_bytes, state_bytes, step_bytes
from slm.train.report.run_record import RunRecord
from slm.train.tune.config import TuneOptions

SHAPE = ("arch", "n_layers", "d_model", "n_heads", "n_kv_heads", "ffn_dim")
OTHER_RATES = ("other_lr_scale",)
"""What Muon's learning rates next to ``lr`` are multiplied by."""
REPLAY = 0.15
"""Share of the base's own text. Without it, and with the head's full rate, a model unlearns to say what no
conversation says (docs/results/chat.md)."""
OWN_ANSWERS = 0.2
"""Share of a downloaded model's own answers to general questions."""
LORA_LR_RATIO = 5.0
"""The learning rate of an adapter over that of all weights."""
OF_A_BEGINNING = ("name", "lr", "warmup_steps", "min_lr_ratio", "init_bigrams")
"""What a tuned run does not take over of its base's optimizer: these are chosen anew, or are for new weights."""
FROM_ELSEWHERE = {"optim.schedule": "linear", "optim.decay_fraction": 1.0, "optim.weight_decay": 0.0}
"""AdamW's options for an adapter, and for a model that comes without a record of its training."""
ADAFACTOR_LR = 1e-2
"""Peak learning rate of Adafactor for all weights, as a share of each parameter's size."""
PREFERENCE_LR_RATIO = {"dpo": 0.02, "orpo": 0.2}
"""Learning rates for pairs over those for conversations. DPO's loss has no term that keeps the model's language:
published recipes take 1/40 to 1/1000 of their learning rate of before. ORPO has one, and takes about 1/5."""


def base_of(path: str) -> tuple[Run, Path]:
    """The base and its checkpoint.

    ``runs/latest`` may be what this command has made of a base, and not finished: then that base is meant again.
    """
    run = models.resolve(path)
    if Path(path).name == LATEST and (begun := _begun_from(run)):
        print(f"{path} is {run.name}, which was begun from {begun.name} and is not finished: it goes on", flush=True)
        run = begun
    return run, run.checkpoint()


def _begun_from(run: Run) -> Run | None:
    """The base of a run that was tuned or quantized and stopped before its end; None for any other run."""
    folder = Path(saved_config(run.root).get("init_from") or "")
    if folder.parent.name != "checkpoints" or not folder.is_dir():
        return None
    base = resolve(folder)
    record = RunRecord(run.root)
    record.update()
    return base if record.status() != "finished" and run.name.startswith(f"{base.name}-") else None


def recipe(
    run: Run,
    directory: Path,
    tune: TuneOptions,
    *,
    given: Callable[[str], bool],
    preference: str | None = None,
    optim: str | None = None,
) -> dict[str, Any]:
    """Options for the base in ``directory``, by name, as far as they do not depend on the conversations.

    ``given`` says whether a person has set an option. ``preference``: the loss of pairs, if both answers are learned.
    ``optim``: the name of the optimizer that a person has chosen.
    """
    scales = {"lr_scale": tune.lr_scale, "other_lr_scale": tune.other_lr_scale}
    options = start_from(run, directory, **scales, given=given, optim=optim)
    options |= {"optim.min_lr_ratio": 0.0, "name": f"{run.name}-chat", "train.keep_last": 1}
    options |= {"train.sample_prompts": "[]"}
    if tune.lora:
        options = {name: value for name, value in options.items() if name.partition(".")[0] != "optim"}
        options |= {"lora.rank": tune.lora, **FROM_ELSEWHERE, "optim.min_lr_ratio": 0.0}
        options |= {} if given("optim") else {"optim": "adamw"}
        options["optim.lr"] = float(f"{lora_lr(checkpoint.load_config(directory)):.3g}")
    if preference:
        options["name"] = f"{run.name}-{preference}"
        for name in ("lr", *OTHER_RATES):
            if (rate := options.get(f"optim.{name}")) is not None:
                options[f"optim.{name}"] = float(f"{rate * PREFERENCE_LR_RATIO[preference]:.3g}")
    return options


def within_memory(shape: ModelConfig, options: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Options for tuning all weights in the memory that is free, and a line where that is another optimizer.

    Adafactor updates inside the backward pass where gradients and moments do not fit, but weights and one gradient do.
    """
    free, needed = available_bytes(), state_bytes(shape, "adamw")
    less = state_bytes(shape, WITHIN_BACKWARD)
    if needed <= free or less > free:
        return {}, None
    line = (
        f"weights, gradients and moments would take {needed / GIB:.1f} GiB and {free / GIB:.1f} GiB are available: "
        f"optim={WITHIN_BACKWARD} takes {less / GIB:.1f} GiB and learns more slowly; tune.lora=16 takes less, too"
    )
    chosen = {name: value for name, value in options.items() if not name.startswith("optim")}
    return chosen | {"optim": WITHIN_BACKWARD, **FROM_ELSEWHERE, "optim.lr": ADAFACTOR_LR}, line


def recomputed(config: RunConfig, shape: ModelConfig) -> tuple[RunConfig, str | None]:
    """The run with each layer's activations computed again in the backward pass, and a line that says so, where a step
    fits into the free memory only then; else the run as it is.

    An adapter's base counts with 4 bits unless ``lora.base_bits`` says otherwise, which is what is chosen where memory
    is short.
    """
    again, free = replace(config.train, gradient_checkpointing=True), available_bytes()
    if config.lora.rank:
        state = adapted_bytes(shape, config.lora.rank, config.lora.base_bits or 4)
    else:
        state = state_bytes(shape, config.optim.name)
    size = expected_value_bytes(config.train)
    needed, less = (state + step_bytes(shape, each, value_bytes=size) for each in (config.train, again))
    if needed <= free or less > free or config.train.recompute == "layer":
        return config, None
    line = (
        f"a step would take {needed / GIB:.1f} GiB and {free / GIB:.1f} GiB are available: layers are computed again "
        f"in the backward pass (train.gradient_checkpointing=true), which takes {less / GIB:.1f} GiB and more time"
    )
    return replace(config, train=again), line


def start_from(
    run: Run,
    directory: Path,
    *,
    lr_scale: float,
    other_lr_scale: float | None = None,
    given: Callable[[str], bool],
    optim: str | None = None,
) -> dict[str, Any]:
    """The options by which a run starts from the weights in ``directory``: shape, optimizer and learning rates.

    The rates are shares of the base's own, unless a person names another optimizer (``optim``): ``other_lr_scale``
    (None: ``lr_scale``, too) for ``OTHER_RATES``.
    """
    other = lr_scale if other_lr_scale is None else other_lr_scale
    shape = checkpoint.load_config(directory)
    options: dict[str, Any] = {f"model.{name}": getattr(shape, name) for name in SHAPE}
    options |= {"model.tie_embeddings": str(shape.tie_embeddings).lower(), "init_from": str(directory)}
    if (own := _own_optimizer(run)) and (not given("optim") or optim == own["name"]):
        options["optim"] = own["name"]
        lr = float(own["lr"]) * lr_scale
        kept = {k: v for k, v in own.items() if k not in OF_A_BEGINNING}
        kept |= {name: float(f"{own[name] * other:.3g}") for name in OTHER_RATES if name in own}
        options |= {f"optim.{name}": value for name, value in kept.items()}
    else:
        lr = size_lr(shape)
        options |= FROM_ELSEWHERE if given("optim") else {"optim": "adamw", **FROM_ELSEWHERE}
    options["optim.lr"] = float(f"{lr:.3g}")
    return options


def _own_optimizer(run: Run) -> dict[str, Any] | None:
    """The optimizer that a run was trained with: a model that changes it forgets more.

    None for a model from elsewhere, and for a run that trained an adapter: an adapter's learning rates are too high for
    a model. A run on pairs of answers has changed the rates; the result has those for conversations.
    """
    config = saved_config(run.root)
    if not config.get("optim") or (config.get("lora") or {}).get("rank"):
        return None
    ratio = PREFERENCE_LR_RATIO.get(str((config.get("preference") or {}).get("loss")), 1.0)
    own = dict(config["optim"])
    return own | {name: own[name] / ratio for name in ("lr", *OTHER_RATES) if own.get(name) is not None}


def _own_data(run: Run) -> tuple[DataConfig, list[SourceConfig]]:
    """What the run read, and those of its sources that are no conversations."""
    data = build(DataConfig, saved_config(run.root)["data"])
    return data, [each for each in data.all_sources() if not each.is_chat]


def size_lr(shape: ModelConfig) -> float:
    """A peak learning rate of AdamW for tuning all weights of a model of this size: smaller for larger ones."""
    return min(1e-3, max(1e-5, 1e-3 * math.sqrt(10e6 / shape.n_params)))


def lora_lr(shape: ModelConfig) -> float:
    """A peak learning rate of AdamW for an adapter: some times that for all weights, whatever the rank."""
    return LORA_LR_RATIO * size_lr(shape)


def answers_share(run: Run, tune: TuneOptions, *, pairs: bool = False) -> float:
    """The share of a downloaded model's own answers to general questions (``own_answers.py``), which stand in for its
    training text; 0 for a run. It is the same with an adapter, which forgets, too."""
    if pairs or run.config_file is not None:
        return 0.0
    return OWN_ANSWERS if tune.replay is None else tune.replay


def forgets(run: Run, tune: TuneOptions, *, pairs: bool = False) -> bool:
    """Whether the tuned weights go back towards the base's: all weights of a downloaded model, which has no text of
    its training to be kept by. An adapter's change is scaled by whoever serves it."""
    return not (pairs or tune.lora or run.config_file is not None)


def frozen_share(run: Run, tune: TuneOptions, *, pairs: bool = False, processes: int = 1) -> float | None:
    """The share of the layers that stays as it is: what a person says, none where the base does not forget or several
    processes train. None: it depends on the conversations (``rule.py``)."""
    if tune.frozen is not None:
        return tune.frozen
    return None if processes == 1 and forgets(run, tune, pairs=pairs) else 0.0


def replay_share(run: Run, tune: TuneOptions, *, pairs: bool = False) -> float:
    """The share of the base's own text: what a person says, else ``REPLAY`` where that text is on this machine.

    An adapter leaves the weights alone, and needs none. ``pairs`` of answers do not mix with text.
    """
    if tune.replay is not None or tune.lora or pairs or run.config_file is None:
        return tune.replay or 0.0
    _, texts = _own_data(run)
    here = all(
        each.kind == "tales" or (each.kind == "files" and (each.prepared or _found(each.files))) for each in texts
    )
    return REPLAY if texts and here else 0.0


def _found(patterns: list[str]) -> bool:
    try:
        return bool(files.expand(patterns))
    except UserError:
        return False


def with_answers(chat: DataConfig, answers: Path, share: float) -> DataConfig:
    """The conversations mixed with those in ``answers``, which get ``share`` of the tokens and are not validated."""
    talks = [replace(each, weight=each.weight * (1 - share)) for each in chat.all_sources()]
    total = sum(each.weight for each in talks) / (1 - share)
    own = SourceConfig(kind="chat", files=[str(answers)], weight=total * share, validated=False)
    kept = {f.name: getattr(chat, f.name) for f in fields(DataConfig) if f.name not in vars(own)}
    return DataConfig(kind="mixture", name=chat.label, **(kept | {"sources": [*talks, own]}))


def with_replay(chat: DataConfig, run: Run, share: float) -> DataConfig:
    """The conversations mixed with the text that the base run learned, which gets ``share`` of the tokens.

    Validations score conversations only: whether they get worse decides when a run ends.
    """
    if run.config_file is None:
        raise UserError(f"tune.replay needs the base's own text, and {run.root} is not a run of slm: leave it 0")
    talks, (base, texts) = chat.all_sources(), _own_data(run)
    if not texts:
        raise UserError(f"tune.replay: {run.root} was trained on conversations only: name the base of that run")
    sources = [
        replace(each, weight=each.weight * part / sum(other.weight for other in group), validated=each.is_chat)
        for group, part in ((talks, 1 - share), (texts, share))
        for each in group
    ]
    kept = {name: getattr(chat, name) for name in ("val_fraction", "shuffle_buffer", "cache", "cache_dir")}
    owner = base if chat.dedup == "none" else chat
    kept |= {name: getattr(owner, name) for name in ("dedup", "dedup_threshold", "dedup_max_docs")}
    return DataConfig(kind="mixture", name=f"{chat.label} and {base.label}", sources=sources, **kept)


def together(train: TrainConfig, every: int, *, given: Callable[[str], bool]) -> dict[str, int]:
    """Validations at steps of checkpoints, so that the best one is kept.

    They are ``every`` steps apart, or about that where a person has set one of the two.
    """
    if given("train.eval_every"):
        every = train.eval_every
    elif given("train.checkpoint_every"):
        every = max(1, round(every / train.checkpoint_every)) * train.checkpoint_every
    names = ("train.eval_every", "train.checkpoint_every")
    return {name: every for name in names if not given(name)}


def without_auto(argv: Sequence[str]) -> list[str]:
    """``argv`` without a micro-batch that is still to be measured, which is no number."""
    return [word for word in argv if word != "train.micro_batch=auto"]


def words(options: dict[str, Any]) -> list[str]:
    """Options as words of a command line."""
    plain = {True: "true", False: "false", None: "null"}
    return [
        assigned(name, Path(v))  # with characters that Hydra's syntax would take for its own
        if name in ("name", "init_from") and v is not None
        else f"{name}={plain[v] if v is None or isinstance(v, bool) else v}"
        for name, v in options.items()
    ]
