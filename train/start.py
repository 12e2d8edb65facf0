"""The start of a run: open its directory, make tokenizer, model and the rest of the trainer, then train.

Tested in tests/train/test_main.py, tests/train/test_resume.py.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from slm.cli import spelled
from slm.configuration import to_yaml
from slm.data.account.listing import show_files
from slm.data.chat.tokens import end_of_turn
from slm.data.errors import UserError
from slm.data.storage import atomic_write_text
from slm.data.stream.loader import Loader, as_it_began, at_saved_commits, calibration_blocks, validation_blocks
from slm.data.tokenizers.tokenizer import Tokenizer
from slm.kernels.fused import unsupported_shape
from slm.llama.verdict import require_working_build
from slm.machine.hardware import process_seconds
from slm.model import checkpoint, resize
from slm.model.config import ModelConfig
from slm.model.transformer import LanguageModel
from slm.runs import CONFIG, Run
from slm.train.backend import attention_bytes, fallback_line, make_backend
from slm.train.bigrams.start import start_from_bigrams
from slm.train.born_again import BornAgain
from slm.train.calibration.end_of_run import HeadCalibration, blocks_needed
from slm.train.config import RunConfig, TrainConfig
from slm.train.distributed.gradient_sync import make_gradient_sync
from slm.train.distributed.launch_files import restarts
from slm.train.distributed.ranks import LostPeerError, Ranks
from slm.train.distributed.shared_state import (
    broadcast_resume_point,
    broadcast_tokenizer,
    make_shared_optimizer,
    own_loader_state,
    restore,
)
from slm.train.environment import Environment, prepare
from slm.train.lora.base import (
    adapter_line,
    base_directory,
    keep_base,
    make_trained,
    new_ids,
    remove_base,
    with_adapter,
)
from slm.train.memory import check_memory, resource_errors
from slm.train.objective.make import make_objective, objective_line
from slm.train.objective.objective import Objective
from slm.train.optim.average import Average
from slm.train.optim.trained import Trained
from slm.train.qat.fake_quant import ROUNDED_ONCE, FakeQuant
from slm.train.run import questions
from slm.train.run.checkpointer import Checkpointer
from slm.train.run.questions import RunQuestions
from slm.train.run.resume import (
    ResumePoint,
    back_up_later_checkpoints,
    check_unchanged,
    find_resume_point,
    keep_cutting,
    rounding,
    rounding_changes,
)
from slm.train.run.run_directory import TOKENIZER, RunDirectory
from slm.train.run.run_log import RunLog
from slm.train.run.run_state import RunState, check_set_up, limit_seconds
from slm.train.run.text import prepare_text, remove_text
from slm.train.run.text_account import TextAccount
from slm.train.trainer import Trainer
from slm.train.validation import Validator


def start(config: RunConfig, ranks: Ranks, root: Path) -> int:
    """Train from the beginning or from a checkpoint. Returns the command's exit code.

    ``root``: the run's directory; on ranks other than 0 a temporary folder.
    """
    with RunDirectory(root, keep_after=LostPeerError) as directory, resource_errors(config.train, root):
        ranks.broadcast_from_main(lambda: _check_processes(config, ranks.size))
        resume = ranks.broadcast_from_main(lambda: _open_directory(config, directory))
        environment = _environment(config, ranks)
        if config.train.qat:
            ranks.main_first(require_working_build)  # its rounding is llama.cpp's own, in this process
        point = broadcast_resume_point(ranks, lambda: _resume_point(config, resume, root))
        if point.checkpoint and _finished(config, point.state):
            print(_finished_line(config, point.state, root))
            return 0
        if point.checkpoint:
            config = replace(config, data=keep_cutting(config.data, point.state["config"])[0])
        if ranks.main:
            show_files(config.data, print)
        tokenizer = broadcast_tokenizer(
            ranks, lambda: _prepare_text(config, root, new=point.checkpoint is None), root / TOKENIZER
        )
        loader, blocks_NT1, kept_NT1 = _open_data(config, tokenizer, ranks, point)
        text = TextAccount.of(loader.plans, tokenizer, config) if ranks.main else TextAccount()
        model, warning, first = _new_model(config, tokenizer, ranks, root, environment, new=point.checkpoint is None)
        objective = ranks.main_first(
            lambda: make_objective(config, model, tokenizer, environment, root, ranks, new=point.checkpoint is None)
        )
        trained = make_trained(model, config, root, ranks)
        notes = (
            _small_vocabulary(config, tokenizer.vocab_size),
            fallback_line(model, environment, config.train),
            warning,
            first,
            adapter_line(trained, config.lora),
            objective_line(config),
            *text.lines(config),
            _not_calibrated(config, len(kept_NT1)),
        )
        _print_plan(config, model, tokenizer.vocab_size, environment, notes, ranks)
        parts = (tokenizer, loader, text, blocks_NT1, kept_NT1, trained, objective)
        asked = questions.prepare(config, root, main=ranks.main)
        trainer = _make_trainer(config, root, ranks, environment, *parts, point, asked)
        directory.accept()
        code = trainer.run()
        print(f"{root}: {trainer.summary()}")
        if code == 0:
            if trainer.state.risen and not config.preference.on:
                print(risen_line(config, trainer.state))
            print(_next_line(root))
            if trainer.questions:
                print(questions.exam_line(root))
        return code


def _check_processes(config: RunConfig, size: int) -> None:
    config.train.check_processes(size)
    if size > 1 and config.distill.born_again:
        raise UserError(
            f"distill.born_again={config.distill.born_again:g} works with one process: leave it 0 with {size}, or "
            "train a teacher first and name it with distill.teacher"
        )


def _open_directory(config: RunConfig, directory: RunDirectory) -> str:
    """Make the run's directory and lock it for this process. Returns ``config.resume``, or ``auto`` after a restart."""
    resume = config.resume
    if count := restarts():  # not a new start: resume from what this run has saved
        print(f"restart {count}: a process of this run had ended")
        resume = "auto"
    directory.open(anew=resume == "never")
    return resume


def _environment(config: RunConfig, ranks: Ranks) -> Environment:
    """This process prepared for training, in the number format that rank 0 found faster."""
    environment = ranks.main_first(lambda: prepare(config.train, threads=ranks.threads, bits=config.kernel_bits))
    if (precision := ranks.broadcast_from_main(lambda: environment.precision)) != environment.precision:
        environment = prepare(config.train, threads=ranks.threads, precision=precision, bits=config.kernel_bits)
    return environment


def _resume_point(config: RunConfig, resume: str, root: Path) -> ResumePoint:
    """The checkpoint to resume from, if any, checked against the configuration."""
    point = find_resume_point(resume, root, print)
    if point.checkpoint:
        check_unchanged(point.state["config"], config, root)
        if not _finished(config, point.state):
            for name in back_up_later_checkpoints(root, point.checkpoint, point.state["step"]):
                print(f"{name} is not what the run goes on from, and is kept aside")
            print(f"resuming {root} from {point.checkpoint.name}")
    return point


def _stopped_early(config: RunConfig, state: dict[str, Any]) -> bool:
    if config.distill.born_again and not state.get("began"):
        return False  # patience is the second model's
    return 0 < config.train.patience <= (state.get("patience") or {}).get("worse", 0)


def _finished(config: RunConfig, state: dict[str, Any]) -> bool:
    if (state.get("validation") or {}).get("step") != state["step"]:
        return False  # stopped in its last validation, which is still to be done
    asked = config.train.qat in ROUNDED_ONCE and config.train.qat_least_steps and "qat" not in state
    if asked and ((state.get("config") or {}).get("train") or {}).get("qat") == config.train.qat:
        return False  # quantization comes after the last update, and a stop in it leaves the checkpoint from before
    if _stopped_early(config, state):
        return True
    limit = limit_seconds(config.train, state.get("setup_s", 0.0), state.get("closing_s", 0.0))
    return state["elapsed_s"] >= limit or state["step"] >= config.train.max_steps


def _finished_line(config: RunConfig, state: dict[str, Any], root: Path) -> str:
    """What a finished run says when it is started again."""
    step, most = state["step"], config.train.max_steps
    how, more = f"step {step:,} of {most:,}", "train.max_steps (or train.max_minutes)"
    if _stopped_early(config, state):
        how, more = f"it stopped early at step {step:,}, when validations did not improve", "train.patience"
    return f"{root} is finished: {how}. To train it further raise {more}; for a new run give name=... or resume=never"


def risen_line(config: RunConfig, state: RunState) -> str:
    """What a run says at its end whose validation loss has risen."""
    others = "" if config.budget else "; budget= chooses what fits text and time"
    return (
        f"the validation loss was down at {state.best_loss:.4f} nats per token and rose to "
        f"{state.validation['val_loss']:.4f}: the model learnt its text by heart, or its rate is too high. "
        "More text, fewer steps (train.max_steps=), more decay (optim.weight_decay=) or a lower rate (optim.lr=) "
        f"end lower{others}"
    )


def _next_line(root: Path) -> str:
    """What can be done with a run that has ended, and which checkpoint that takes where it is not the newest."""
    run = Run(root=root)
    note = f"    ({run.checkpoint().name} has the lowest validation loss)" if run.choice_line() else ""
    return f"next: {spelled('export', run=root)}    then: {spelled('serve', model=root)}{note}"


def _prepare_text(config: RunConfig, root: Path, *, new: bool) -> Tokenizer:
    """The run's tokenizer. It and the text samples for export are in ``root`` afterwards.

    A run that resumes uses what is there. A ``new`` one makes everything from its own settings: what lies there was
    left by a start that ended before its first checkpoint, perhaps with other settings.
    """
    if new:
        remove_base(root)
        remove_text(root)
        questions.remove(root)
    return prepare_text(config, root)


def _open_data(
    config: RunConfig, tokenizer: Tokenizer, ranks: Ranks, point: ResumePoint
) -> tuple[Loader, np.ndarray, np.ndarray]:
    """The training batches, from where the run resumes, the validation blocks [N, seq_len + 1], and those for the
    calibration of the head, none where it is not calibrated."""
    train = config.train
    position = own_loader_state(ranks, point.state, reshard=train.reshard) if point.checkpoint else None
    saved = point.state.get("config", {}).get("data", {})
    data = at_saved_commits(config.data, point.state.get("loader"), began_with=saved.get("revision") or "")
    if position is not None:
        tokenizer = as_it_began(tokenizer, position)
    blocks_NT1 = ranks.broadcast_from_main(
        lambda: validation_blocks(
            data,
            tokenizer,
            train.seq_len,
            train.eval_blocks,
            train.seed,
            pairs=config.preference.on,
            position=point.state.get("loader"),
        )
    )
    if len(blocks_NT1) == 0:
        raise UserError(
            f"the validation text is shorter than one sequence of {train.seq_len} tokens: "
            "give more text, a larger data.val_fraction, data.val_files=[...], or a smaller train.seq_len"
        )
    kept_NT1 = np.empty((0, train.seq_len + 1), np.int32)
    if config.calibrates_head:
        kept_NT1 = ranks.broadcast_from_main(
            lambda: calibration_blocks(
                data,
                tokenizer,
                train.seq_len,
                blocks_needed(train.seq_len),
                train.seed,
                position=point.state.get("loader"),
            )
        )
    loader = Loader(
        data,
        tokenizer,
        seq_len=train.seq_len,
        micro_batch=train.micro_batch,
        split="train",
        seed=train.seed,
        workers=train.workers,
        rank=ranks.rank,
        world_size=ranks.size,
        pairs=config.preference.on,
        room=train.pack_tokens,
        calibrates=config.calibrates_head,
    )
    if position is not None:
        loader.load_state_dict(position)
    return loader, blocks_NT1, kept_NT1


def _new_model(
    config: RunConfig, tokenizer: Tokenizer, ranks: Ranks, root: Path, environment: Environment, *, new: bool
) -> tuple[LanguageModel, str | None, str | None]:
    """The model with its first weights, the same on every rank, a warning where memory may be too small, and a line on
    weights that begin as bigrams. ``new``: no checkpoint will take their place."""
    train, directory = config.train, base_directory(config, root)
    if directory:
        chat = tokenizer if config.data.has_chat else None
        shape = ranks.broadcast_from_main(lambda: _starting_shape(directory, train.seq_len, chat, config.lora.rank))
    else:
        shape = config.model.model_config(
            vocab_size=tokenizer.vocab_size, seq_len=train.seq_len, eos_id=tokenizer.eot_id
        )
    frozen = config.preference.loss == "dpo" or config.distill.teacher == "self" or config.distill.born_again > 0
    masked = train.mask_documents or config.data.has_chat or any(shape.local_layers)
    attention = attention_bytes(shape, train, environment, masked=masked)
    kernels = environment.kernels
    warning = check_memory(
        shape,
        train,
        adapter=config.lora.rank > 0,
        frozen=frozen,
        attention=attention,
        value_bytes=2 if environment.precision == "bf16" else 4,
        packed=kernels is not None and unsupported_shape(shape, kernels) is None and train.recompute == "none",
    )
    torch.manual_seed(train.seed)
    if directory and ranks.main:
        added = new_ids(directory, tokenizer) if config.lora.rank else range(0)
        model = resize.load_model(directory, shape, spread=added)
        if added:
            keep_base(root, model, tokenizer)
    else:
        model = LanguageModel(shape, config.optim.init)
    first = None
    if new and ranks.main and config.optim.init_bigrams:
        first = start_from_bigrams(config, tokenizer, model)
    model.train()
    ranks.broadcast(list(model.parameters()))
    return model, warning, first


def _starting_shape(directory: str, seq_len: int, chat: Tokenizer | None, rank: int = 0) -> ModelConfig:
    """The shape of the Hugging Face model in ``directory``; UserError where ``seq_len`` tokens exceed its context, or
    an adapter of this ``rank`` its width.

    With ``chat``, the tokenizer of a model that is tuned on conversations, the vocabulary has a row for each of its ids
    and a turn ends with its end-of-text token. The context is then at least ``seq_len``: a sequence holds several
    conversations that do not see each other.
    """
    shape = checkpoint.load_config(directory)
    if rank > shape.d_model:
        raise UserError(
            f"a LoRA rank of {rank:,} is over the width of {directory} ({shape.d_model:,}), so the adapter would be "
            "larger than the weights: use for example 16"
        )
    if chat is not None:
        bos_id = shape.eos_id if shape.bos_id is None else shape.bos_id
        grown = resize.with_vocabulary(shape, chat.vocab_size, bos_id=bos_id, eos_id=chat.eot_id)
        return replace(grown, seq_len=max(seq_len, shape.seq_len))
    if seq_len > shape.seq_len:
        raise UserError(
            f"train.seq_len={seq_len} is longer than the context of {directory}: "
            f"use train.seq_len={shape.seq_len} or less"
        )
    return shape


def _print_plan(
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
        f"{config.train.tokens_per_step:,} tokens per step, {environment.threads} threads"
        + (f" in each of {ranks.size} processes" if ranks.size > 1 else "")
    )
    short = _short_run(config.train.max_steps, config.optim.warmup_steps)
    for note in (*environment.notes, *filter(None, [*notes, short, _short_qat(config.train)])):
        print(f"  {note}")


def _small_vocabulary(config: RunConfig, size: int) -> str | None:
    """A line where the text that a new tokenizer was trained on had too few pairs for the ids that were asked for."""
    asked = config.tokenizer
    if asked.kind != "bpe" or config.init_from is not None or size >= asked.vocab_size:
        return None
    return (
        f"{size:,} of tokenizer.vocab_size={asked.vocab_size} ids: the text that the tokenizer was trained on "
        f"(tokenizer.sample_bytes={asked.sample_bytes}) has no more pairs of tokens that come "
        f"{asked.min_frequency} times (tokenizer.min_frequency)"
    )


def _not_calibrated(config: RunConfig, blocks: int) -> str | None:
    """A line where there is too little text to calibrate a head with."""
    if not config.calibrates_head or blocks:
        return None
    return (
        "the head is not calibrated (train.calibrate_head): the training text that is kept for it is less than one "
        f"sequence of {config.train.seq_len} tokens"
    )


def _short_qat(train: TrainConfig) -> str | None:
    """A line where quantization-aware training at the end of a run would have too few steps to be worth it."""
    steps = train.max_steps - math.ceil((1 - train.qat_share) * train.max_steps)
    if train.qat not in ROUNDED_ONCE or train.max_minutes is not None or steps >= train.qat_least_steps:
        return None
    return (
        f"train.qat={train.qat} would hold for {steps:,} of {train.max_steps:,} steps, fewer than "
        f"train.qat_least_steps={train.qat_least_steps}: the weights are rounded once, at the end"
    )


def _short_run(steps: int, warmup: int) -> str | None:
    """A line where the run ends before its learning rate has reached its height."""
    if steps > warmup:
        return None
    return (
        f"the run ends in its warm-up: {steps:,} steps with optim.warmup_steps={warmup:,}, so the learning rate never "
        f"reaches optim.lr; give optim.warmup_steps={steps // 10} or more train.max_steps"
    )


def _make_trainer(
    config: RunConfig,
    root: Path,
    ranks: Ranks,
    environment: Environment,
    tokenizer: Tokenizer,
    loader: Loader,
    text: TextAccount,
    blocks_NT1: np.ndarray,
    kept_NT1: np.ndarray,
    trained: Trained,
    objective: Objective,
    point: ResumePoint,
    asked: RunQuestions,
) -> Trainer:
    """The trainer and what it is made of, in the state of the checkpoint where the run resumes from one."""
    train, model = config.train, trained.model
    optimizer = make_shared_optimizer(
        ranks,
        trained,
        config.optim,
        zero1=train.shard_optimizer,
        precision=environment.precision,
        kernels=environment.kernels,
    )
    average = Average(model, config.optim.average)
    fake_quant = FakeQuant(
        model,
        train.qat,
        train.qat_share,
        environment.threads,
        compensated=train.qat_rounding == "gptq",
        least_steps=train.qat_least_steps,
    )
    calibration = HeadCalibration(kept_NT1, words=tokenizer.vocab_size)
    state = RunState(train)
    if point.checkpoint:
        restore(ranks, point, trained, optimizer, average, fake_quant)
        calibration.load(point.tensors, ranks)
        state.resume(point.state)
        if changed := rounding_changes(point.state.get("rounding", {}), rounding(environment, train)):
            print(changed)
    # Before anything of the run is written; what follows takes little time, and is checked below.
    check_set_up(train, state.setup_seconds + ranks.broadcast_from_main(process_seconds))
    backend = make_backend(model, train, environment, tokenizer.eot_id if train.mask_documents else None)
    if backend.name == "autograd" and environment.compile:
        loader.pad()
    backend = with_adapter(backend, trained)
    atomic_write_text(root / CONFIG, to_yaml(config))
    log = RunLog(config, root, state.step, main=ranks.main, new=point.checkpoint is None)
    interrupt, sync = make_gradient_sync(
        ranks, trained, elapsed=lambda: state.elapsed, start_elapsed=state.earlier_seconds, dtype=train.reduce
    )

    asked.attach(model, tokenizer)
    turn = end_of_turn(tokenizer)

    def save_description(folder: Path) -> None:
        tokenizer.save(folder)
        trained.describe(folder)
        if turn is not None and turn != model.config.eos_id:
            checkpoint.also_stop_at(folder, turn)

    checkpointer = Checkpointer(
        root,
        model.config,
        save_description,
        keep_last=train.keep_last,
        background=train.background_save,
        log=log.print,
        rollback_step=(lambda step: step % train.checkpoint_every == 0) if train.spike_factor else None,
    )
    optimizer.register_step_pre_hook(lambda *_: checkpointer.before_update())
    optimizer.register_step_pre_hook(lambda *_: fake_quant.show_masters())
    state.start_clock(ranks.broadcast_from_main(process_seconds))
    check_set_up(train, state.setup_seconds)
    log.events.start(state.step, point.checkpoint, model.config, environment, processes=ranks.size, text=text.record())
    return Trainer(
        config=config,
        root=root,
        ranks=ranks,
        environment=environment,
        tokenizer=tokenizer,
        model=model,
        trained=trained,
        optimizer=optimizer,
        average=average,
        fake_quant=fake_quant,
        loader=loader,
        text=text,
        backend=backend,
        born_again=BornAgain(config, tokenizer, environment, root, objective),
        calibration=calibration,
        validator=Validator(blocks_NT1, tokenizer, model.config.vocab_size, train.micro_batch, objective),
        state=state,
        log=log,
        interrupt=interrupt,
        sync=sync,
        checkpointer=checkpointer,
        questions=asked,
    )
