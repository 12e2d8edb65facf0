"""``preset=auto budget=8h``: the options of a run that a person did not give, chosen for the time that it may take.

They become ordinary options of the run, recorded in its ``config.yaml``. A run that goes on has them from there, and
nothing is measured again.

Tested in tests/train/budget/test_choose.py.
"""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slm.cli import spelled
from slm.configuration import build, load_config
from slm.data.account.listing import check_files
from slm.data.errors import UserError
from slm.machine.hardware import process_seconds
from slm.machine.memory import available_bytes
from slm.report import duration, table
from slm.runs import list_checkpoints, saved_config
from slm.train.budget import choice, corpus
from slm.train.budget.choice import Candidate, Wanted
from slm.train.budget.corpus import CorpusSize
from slm.train.budget.machine import SECONDS, Machine, machine_name, measured
from slm.train.config import OptimConfig, RunConfig
from slm.train.phases import bag_of, short_of
from slm.train.predict import records
from slm.train.predict.law import DEEP_LR, LossLaw, fitted, learns_slower
from slm.train.predict.ngram import Level
from slm.train.resolve import Chosen, given_value, model_shape, with_corpus_tokenizer, with_run_directory

SPARE_STEPS = 4
"""``train.max_steps`` as a multiple of the predicted steps, so that time ends the run even on a machine that proves
faster."""
MEASURING_SHARE = 0.03
"""Share of the budget for measuring the machine. A short run chooses no wide model, so it need not measure one."""
EMBED_LR_WITH_BIGRAMS = 0.025
"""Learning rate of an embedding with bigram initialization, lower than that of a random one
(docs/results/recipe.md)."""
BETAS_WITH_SAMPLED = "[0.8,0.99]"
"""AdamW's betas with a sampled softmax. A rare token then has infrequent and large gradients, which beta2 = 0.95
forgets too soon (docs/results/recipe.md)."""
TABLES_MEMORY, MATRICES_MEMORY = 0.4, 0.9
"""Time constants of weight decay at the peak learning rate, in epochs, for runs of two epochs or more. They limit
memorization. In this unit the best values agree for texts of 4 to 52 MB and steps of 8,192 to 24,576 tokens
(docs/results/recipe.md). With a single epoch decay gains nothing."""
MILD_EPOCHS = 4.0
"""Number of epochs above which both time constants shrink in proportion to the epochs."""
TAUGHT_MEMORY = 2.0
"""Factor on both time constants with a teacher, which limits memorization as well."""
TEACHER_SHARE = 0.5
"""``distill.alpha`` of self-distillation. With .9 the student copies too much of what its teacher has memorized."""
LEAST_TABLES_STEPS, LEAST_MATRICES_STEPS = 8, 18
"""Least time constants in steps, about those of the best run on 1 MB of text."""
SHOWN = 5
"""Rows of the table of sizes."""
READING = ("tokens/s", "time", "tokens", "epochs")
"""Columns of the table that tell speed, time and amount of text."""
CHOSEN_WORDS = "chosen"
"""Key of ``facts`` that holds the chosen options."""


@dataclass(frozen=True, kw_only=True)
class Basis:
    """The inputs of a choice."""

    machine: Machine
    corpus: CorpusSize
    law: LossLaw
    wanted: Wanted


def candidates(basis: Basis, seconds: float, *, spent: float = 0.0) -> list[Candidate]:
    """Every size that fits a run of ``seconds``, of which ``spent`` have passed. UserError if none fits into memory."""
    memory = available_bytes()
    found = choice.candidates(
        basis.machine, basis.corpus, basis.law, seconds, spent=spent, memory=memory, wanted=basis.wanted
    )
    if not found:
        raise UserError(
            f"no model of the sizes to choose from fits into {memory / 2**30:.1f} GiB of memory: free some, or name a "
            "smaller one with model.n_layers= and model.d_model="
        )
    return found


def choose(argv: list[str], seconds: float) -> Chosen:
    """Print the table of sizes and return the options that complete ``argv`` for a run of ``seconds``.

    UserError if no size fits into memory, or if the run of this name was started without a budget.
    """
    base = compose(argv)
    if base.resume != "never":
        for root in (base.root, base.teacher_root):
            if list_checkpoints(root):
                return _kept(root)
    basis = basis_of(base, argv, seconds)
    found = candidates(basis, seconds, spent=process_seconds())
    chosen = choice.best(found)
    show(chosen, choice.menu(found), basis, seconds)
    found_words = words(chosen, argv)
    return Chosen(found_words, facts(chosen, found_words, basis.corpus.level))


def compose(argv: list[str]) -> RunConfig:
    """The configuration before anything is chosen: the preset ``tiny`` with the person's options."""
    own = [word for word in argv if not word.startswith(("preset=", "budget="))]
    automatic = [word for word in own if word != "train.micro_batch=auto"]
    composed = load_config("train", ["preset=tiny", *_own_name(argv), *automatic])
    return with_corpus_tokenizer(with_run_directory(build(RunConfig, composed)))


def _own_name(argv: list[str]) -> list[str]:
    """The run's name where neither the person nor the checkpoint that it goes on from gives it one."""
    from_checkpoint = Path(given_value(argv, "resume") or "").parent.name == "checkpoints"
    return [] if given_value(argv, "name") or from_checkpoint else ["name=auto"]


def basis_of(base: RunConfig, argv: list[str], seconds: float, machine: Machine | None = None) -> Basis:
    """The machine's speed (this one's, unless one is given), the text's size, the law of all records, and what the
    person has set."""
    check_files(base.data)
    machine = machine or measured(base.train, base.optim, min(SECONDS, max(2.0, MEASURING_SHARE * seconds)))
    wanted = wanted_of(base, argv)
    vocabularies = sorted({*corpus.VOCABULARIES, *([wanted.vocab_size] if wanted.vocab_size else [])})
    size = corpus.count(base.data, base.train.seed, [each for each in vocabularies if each >= 512] or [512])
    return Basis(machine=machine, corpus=size, law=fitted([*records.load(), *records.load_own()]), wanted=wanted)


def wanted_of(base: RunConfig, argv: list[str]) -> Wanted:
    """What ``argv`` sets of the things that are chosen."""

    def typed(key: str, group: str) -> bool:
        return given_value(argv, key) is not None or given_value(argv, group) is not None

    vocab = None
    if typed("tokenizer.vocab_size", "tokenizer") or not base.tokenizer.trained:
        vocab = model_shape(base).vocab_size
    shape = {k: getattr(base.model, k) for k in ("n_layers", "d_model", "ffn_dim") if typed(f"model.{k}", "model")}
    micro_batch = base.train.micro_batch if given_value(argv, "train.micro_batch") not in (None, "auto") else None
    grad_accum = base.train.grad_accum if given_value(argv, "train.grad_accum") is not None else None
    seq_len = base.train.seq_len if given_value(argv, "train.seq_len") is not None else None
    single = base.data.has_chat or base.init_from or base.distill.teacher
    phases = base.train.phases
    typed_phases = given_value(argv, "train.phases") is not None
    bag, bags_until = bag_of(phases) if bag_of(phases)[0] > 1 else (1, choice.BAGS_UNTIL)
    short, short_until = short_of(phases) if short_of(phases)[0] else (0, choice.SHORT_UNTIL)
    all_words = base.preference.on or base.distill.teacher or given_value(argv, "train.sampled_softmax") is not None
    tied = base.model.tie_embeddings and typed("model.tie_embeddings", "model")
    once = single or base.preference.on or given_value(argv, "distill.born_again") is not None
    own_start = base.data.has_chat or base.init_from or tied or typed("optim.init_bigrams", "optim")
    epochs = [each.max_epochs for each in base.data.all_sources()]
    return Wanted(
        **shape,
        vocab_size=vocab,
        seq_len=seq_len,
        sequences=micro_batch * grad_accum if micro_batch and grad_accum else None,
        micro_batch=micro_batch,
        grad_accum=grad_accum,
        superposition=bag if single or typed_phases else None,
        superposition_share=bags_until,
        short_seq_len=short if base.data.has_chat or typed_phases else None,
        short_seq_share=short_until,
        sampled_softmax=base.train.sampled_softmax if all_words else None,
        init_bigrams=base.optim.init_bigrams if own_start else None,
        born_again=base.distill.born_again if once else None,
        max_epochs=None if None in epochs else min(filter(None, epochs)),
        calibrate_head=base.calibrates_head,
    )


def words(chosen: Candidate, argv: list[str]) -> list[str]:
    """The choice as options, without those of a group that the person has named (``model=50m``)."""
    steps = chosen.steps
    every = max(1, round(steps / choice.VALIDATIONS))
    options: dict[str, Any] = {f"model.{k}": v for k, v in chosen.shape.options(tied=chosen.shape.tied).items()}
    options |= {
        "tokenizer.vocab_size": chosen.vocab_size,
        "tokenizer.sample_bytes": chosen.sample_bytes,
        "optim.momentum_steps": min(300, max(20, chosen.last_steps // 4)),
        "train.max_steps": steps if chosen.ends_early else math.floor(min(SPARE_STEPS * steps, chosen.most_steps)),
        "train.seq_len": chosen.seq_len,
        "train.micro_batch": chosen.micro_batch,
        "train.grad_accum": chosen.sequences // chosen.micro_batch,
        "train.phases": _phases(chosen),
        "train.sampled_softmax": chosen.sampled_softmax,
        "train.eval_every": every,
        "train.eval_blocks": chosen.validation_blocks,
        "train.eval_last_blocks": chosen.last_validation_blocks,
        "train.checkpoint_every": every,
    }
    if chosen.born_again:
        options |= {"distill.born_again": chosen.born_again, "distill.alpha": TEACHER_SHARE}
    if given_value(argv, "optim") is None:
        options["optim.init_bigrams"] = chosen.init_bigrams
        if chosen.sampled_softmax:
            options["optim.betas"] = BETAS_WITH_SAMPLED
        if chosen.init_bigrams:
            options["optim.embed_lr"] = EMBED_LR_WITH_BIGRAMS
            if learns_slower(chosen.shape.n_layers, chosen.init_bigrams):
                options["optim.lr"] = DEEP_LR
        if chosen.epochs > 1:
            options |= decays(chosen, compose([*_spelled(options, argv), *argv]).optim)
    return [*_own_name(argv), *_spelled(options, argv)]


def _phases(chosen: Candidate) -> str:
    """``train.phases`` as on the command line."""
    found = []
    if chosen.superposition > 1:
        found.append(f"{{bags: {chosen.superposition}, until: {choice.BAGS_UNTIL}}}")
    if chosen.short_seq_len:
        found.append(f"{{seq_len: {chosen.short_seq_len}, until: {choice.SHORT_UNTIL}}}")
    return f"[{', '.join(found)}]"


def _spelled(options: dict[str, Any], argv: list[str]) -> list[str]:
    """Options as words, without those of a group that ``argv`` names."""
    named = {group for group in ("model", "tokenizer") if given_value(argv, group) is not None}
    plain = {True: "true", False: "false"}
    return [
        f"{name}={plain[value] if isinstance(value, bool) else value}"
        for name, value in options.items()
        if name.partition(".")[0] not in named
    ]


def decays(chosen: Candidate, optim: OptimConfig) -> dict[str, float]:
    """Decay of tables and matrices, per unit of ``optim``'s learning rates, where the text is read more than once: in
    full from twice on, and stronger from ``MILD_EPOCHS`` on."""
    share = min(1.0, chosen.epochs - 1)
    epoch = chosen.steps / chosen.epochs * min(1.0, MILD_EPOCHS / chosen.last_epochs)
    if chosen.born_again:
        epoch *= TAUGHT_MEMORY
    tables = share / max(LEAST_TABLES_STEPS, TABLES_MEMORY * epoch)
    matrices = share / max(LEAST_MATRICES_STEPS, MATRICES_MEMORY * epoch)
    found = {
        "optim.table_decay": tables,
        "optim.weight_decay": matrices / optim.lr,
    }
    return {name: float(f"{value:.3g}") for name, value in found.items()}


def facts(chosen: Candidate, chosen_words: list[str], level: Level) -> dict[str, Any]:
    """What the run's ``config.yaml`` keeps of the choice."""
    return {
        "n_params": chosen.model.n_params,
        "flops_per_token": chosen.model.flops_per_token(chosen.seq_len, chosen.sampled_softmax),
        "training_state_bytes": chosen.model.training_state_bytes,
        "predicted": {
            "bits_per_byte": round(chosen.bits_per_byte, 4),
            "low": round(chosen.low, 4),
            "high": round(chosen.high, 4),
            "tokens": chosen.tokens,
            "tokens_per_s": round(chosen.tokens_per_s, 1),
            "epochs": round(chosen.epochs, 3),
            "level": {name: round(value, 4) for name, value in asdict(level).items()},
        },
        CHOSEN_WORDS: chosen_words,
    }


def _kept(root: Path) -> Chosen:
    """The choice that the run of this name was begun with."""
    try:
        kept = saved_config(root)["facts"]
        return Chosen(list(kept[CHOSEN_WORDS]), dict(kept))
    except (KeyError, TypeError):
        raise UserError(
            f"the run {root} was not begun with preset=auto: go on with its own preset "
            f"({spelled('train', preset='10m', budget='8h')}), give another name=, or resume=never"
        ) from None


def show(chosen: Candidate, sizes: list[Candidate], basis: Basis, seconds: float) -> None:
    """Print the sizes around the choice for a budget of ``seconds``, and the reason."""
    at = next(i for i, each in enumerate(sizes) if each.shape == chosen.shape)
    first = max(0, min(at - SHOWN // 2, len(sizes) - SHOWN))
    rows = [
        [
            f"{each.shape.n_layers} x {each.shape.d_model}",
            f"{each.model.n_params / 1e6:.1f}M",
            f"{each.vocab_size:,}",
            f"{each.sequences * each.seq_len:,}",
            *reading(each),
            f"{each.bits_per_byte:.3f}",
            f"{each.low:.3f} to {each.high:.3f}",
        ]
        for each in (chosen if each.shape == chosen.shape else each for each in sizes[first : first + SHOWN])
    ]
    columns = ["layers x width", "parameters", "vocabulary", "tokens a step", *READING]
    columns += ["bits per byte", "two of three"]
    table(f"{duration(seconds)} on {machine_name(basis.machine)}", columns, rows, chosen=[at - first])
    print("  " + reason(chosen, sizes, basis))


def reading(each: Candidate) -> list[str]:
    """The cells of a size under ``READING``."""
    return [
        f"{each.tokens_per_s:,.0f}",
        duration(each.seconds),
        f"{each.tokens / 1e6:,.1f}M",
        f"{each.epochs:.2f}" if each.epochs else "-",
    ]


def reason(chosen: Candidate, sizes: list[Candidate], basis: Basis) -> str:
    """Why this size."""
    text = "the lowest predicted bits per byte of the validation text at the end"
    smaller = [each for each in sizes if each.model.n_params < chosen.model.n_params]
    larger = [each for each in sizes if each.model.n_params > chosen.model.n_params]
    if smaller and larger:
        text += "; a smaller model would learn less from its text, a larger one would see too little"
    if chosen.born_again:
        text += (
            f"; the first {chosen.born_again:.0%} of the run train a teacher for a model that begins anew, and learns "
            f"more of text that it reads {chosen.last_epochs:.0f} times (distill.born_again)"
        )
    if chosen.ends_early and chosen.steps + 1 > chosen.most_steps:
        text += f"; the run ends after {duration(chosen.seconds)}, when data.max_epochs allows no more of the text"
    elif chosen.ends_early:
        text += (
            f"; the run ends after {duration(chosen.seconds)}, since reading the text more than "
            f"{chosen.last_epochs:.0f} times gains next to nothing: more text would help, more time would not"
        )
    elif chosen.epochs > 4 and not chosen.born_again:
        text += f"; the text is read {chosen.epochs:.0f} times: more text would help more than more time"
    if not math.isclose(basis.corpus.level.remembering, 1.0, abs_tol=0.15):
        text += "; this text is unlike the books that the law was fitted to, so the level is uncertain"
    return text
