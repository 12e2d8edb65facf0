"""From the base to the options of its tuning: shape, optimizer, learning rate, batches and length.

Everything is an ordinary option of training, so a person can set each one, and what is set stays.

Tested in tests/train/tune/test_tune.py.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from data.chat.template import TemplateRefusesError
from data.chat.tokens import ChatEncoder, chat_tokenizer
from data.config import DataConfig, SourceConfig
from data.errors import UserError, one_line
from data.sources import chat_files, files
from data.sources.documents import make_plans, open_stream
from data.stream.conversations import in_block, n_blocks
from data.tokenizers.make import load_tokenizer
from slm.configuration import assigned, build
from slm.hub import models
from slm.model import checkpoint
from slm.model.config import ModelConfig
from slm.runs import LATEST, Run, resolve, saved_config
from train.config import TrainConfig
from train.report.run_record import RunRecord
from train.tune.config import TuneOptions

SHAPE = ("arch", "n_layers", "d_model", "n_heads", "n_kv_heads", "head_dim", "ffn_dim", "rope_theta", "norm_eps")
OTHER_RATES = ("embed_lr", "head_lr", "tied_lr", "gain_lr")
"""Muon's learning rates next to ``lr``."""
REPLAY = 0.15
"""Share of the base's own text. Without it, and with the head's full rate, a model unlearns to say what no
conversation says (docs/results/chat.md)."""
SEQ_LEN, TOKENS_PER_STEP = 1024, 4096
"""Several conversations share a sequence, so it may be longer than the base's context."""
ENDLESS_STEPS = 1000
"""Optimizer steps on conversations whose number is not known: the embedded ones, and those of the Hub."""
WARMUP_STEPS = 20
"""At most; a fifth of a shorter run."""
LORA_LR_RATIO = 5.0
"""The learning rate of an adapter over that of all weights."""
PREFERENCE_LR_RATIO = {"dpo": 0.02, "orpo": 0.2}
"""Learning rates for pairs over those for conversations. DPO's loss has no term that keeps the model's language:
published recipes take 1/40 to 1/1000 of their learning rate of before. ORPO has one, and takes about 1/5."""
MEASURED = 1000
"""Conversations that are tokenized to estimate how many tokens there are."""


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
    options |= {"optim.warmup_steps": WARMUP_STEPS, "optim.min_lr_ratio": 0.0, "name": f"{run.name}-chat"}
    options |= {"train.seq_len": SEQ_LEN, "train.micro_batch": TOKENS_PER_STEP // SEQ_LEN, "train.patience": 3}
    options |= {"train.keep_last": 1, "train.eval_blocks": 32, "train.sample_prompts": "['Hello!','Tell me a story.']"}
    if tune.lora:
        options = {name: value for name, value in options.items() if name.partition(".")[0] != "optim"}
        alpha = "null" if tune.lora_alpha is None else tune.lora_alpha
        options |= {"lora.rank": tune.lora, "lora.alpha": alpha, "lora.targets": f"[{','.join(tune.lora_targets)}]"}
        options |= {"optim.warmup_steps": WARMUP_STEPS, "optim.min_lr_ratio": 0.0, "optim.weight_decay": 0.0}
        options |= {} if given("optim") else {"optim": "adamw"}
        options["optim.lr"] = float(f"{lora_lr(checkpoint.load_config(directory)):.3g}")
    if preference:
        options["name"] = f"{run.name}-{preference}"
        for name in ("lr", *OTHER_RATES):
            if (rate := options.get(f"optim.{name}")) is not None:
                options[f"optim.{name}"] = float(f"{rate * PREFERENCE_LR_RATIO[preference]:.3g}")
    return options


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
        kept = {k: v for k, v in own.items() if k not in ("name", "lr", "warmup_steps", "min_lr_ratio")}
        kept |= {name: float(f"{own[name] * other:.3g}") for name in OTHER_RATES if name in own}
        options |= {f"optim.{name}": value for name, value in kept.items()}
    else:
        lr = size_lr(shape)
        options |= {} if given("optim") else {"optim": "adamw"}
    options["optim.lr"] = float(f"{lr:.3g}")
    return options


def _own_optimizer(run: Run) -> dict[str, Any] | None:
    """The optimizer that a run was trained with: a model that changes it forgets more.

    None for a model from elsewhere, and for a run that trained an adapter, whose learning rates are no model's. Those
    for pairs of answers are as for conversations again.
    """
    config = saved_config(run.root)
    if not config or (config.get("lora") or {}).get("rank"):
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


def replay_share(run: Run, tune: TuneOptions, *, pairs: bool = False) -> float:
    """The share of the base's own text: what a person says, else ``REPLAY`` where that text is on this machine.

    An adapter leaves the weights alone, and needs none. ``pairs`` of answers do not mix with text.
    """
    if tune.replay is not None or tune.lora or pairs or run.config_file is None:
        return tune.replay or 0.0
    _, texts = _own_data(run)
    here = all(each.kind == "tales" or (each.kind == "files" and _found(each.files)) for each in texts)
    return REPLAY if texts and here else 0.0


def _found(patterns: list[str]) -> bool:
    try:
        return bool(files.expand(patterns))
    except UserError:
        return False


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


def length(
    data: DataConfig, directory: Path, *, tokens_per_step: int, seq_len: int, seed: int, pairs: bool = False
) -> tuple[int, str]:
    """Optimizer steps for ``data.max_epochs`` passes over the conversations, and one line on what was found.

    ``pairs``: both answers of preference pairs are read, and nothing else. UserError where the chat template refuses
    all conversations, and where none has an answer in its first ``seq_len`` tokens.
    """
    sources = data.all_sources()
    own_files = len(sources) == 1 and sources[0].kind == "chat" and not sources[0].path
    if not own_files or data.max_epochs is None:
        return ENDLESS_STEPS, ""
    paths = tuple(files.expand(sources[0].files, plain_text=False))
    findings = chat_files.inspect(paths, stop=not sources[0].skips_bad)
    if not findings.complete:
        return ENDLESS_STEPS, findings.line(pairs=pairs)
    encoder = ChatEncoder(chat_tokenizer(load_tokenizer(directory)))
    (plan,) = make_plans(data, "train")
    stream = open_stream(plan, seed=seed, wrap=lambda corpus: corpus)
    lengths: list[int] = []
    used: list[int] = []
    """Tokens of each that training reads."""
    count = looked_at = refused = 0
    why = ""
    while True:
        try:
            document = next(stream)
        except StopIteration:
            break
        count += 1
        if looked_at < MEASURED:
            looked_at += 1
            try:
                parts = encoder.pair(document) if pairs else (encoder.conversation(document)[:2],)
            except TemplateRefusesError as error:
                refused, why = refused + 1, why or one_line(error)
                continue
            if parts is None:
                continue
            lengths.append(sum(len(ids) for ids, _ in parts))
            if fitting := in_block(parts, seq_len + 1):
                used.append(sum(len(ids) for ids, _ in fitting))
    if refused and not lengths:
        raise UserError(
            f"the chat template of {directory} refuses all conversations, the first so: {why}; give them in the form "
            "that it takes, or tune a base model, which gets ChatML"
        )
    first = f"first {'half of ' if pairs else ''}train.seq_len={seq_len} tokens"
    if lengths and not used:
        raise UserError(
            f"no conversation has an answer in its {first} (they have "
            f"{min(lengths):,} to {max(lengths):,}): raise train.seq_len, or shorten what comes before the answers"
        )
    blocks = n_blocks(used, seq_len + 1) * count / max(1, looked_at)
    steps = max(1, math.ceil(data.max_epochs * blocks * seq_len / tokens_per_step))
    found = findings.line(pairs=pairs)
    if refused:
        found += f"; the chat template refuses {refused:,} of {looked_at:,}, which are left out, the first so: {why}"
    if len(used) < len(lengths):
        late = f"{len(lengths) - len(used):,} of {len(lengths):,} looked at"
        found += f"; {late} have no answer in their {first}: left out"
    return steps, found


def together(train: TrainConfig, every: int, *, given: Callable[[str], bool]) -> dict[str, int]:
    """Validations at steps of checkpoints, so that the best one is kept.

    They are ``every`` so many steps, or about that where a person has set one of the two.
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
