"""The start of a run: the order in which its parts are built, then its training.

Tested in tests/train/test_main.py, tests/train/test_resume.py.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from slm.configuration import to_yaml
from slm.data.account.listing import show_files
from slm.data.chat.tokens import end_of_turn
from slm.data.storage import atomic_write_text
from slm.data.tokenizers.tokenizer import Tokenizer
from slm.llama.verdict import require_working_build
from slm.machine.hardware import process_seconds
from slm.model import checkpoint
from slm.runs import CONFIG
from slm.train.backend import fallback_line, make_backend
from slm.train.beginning import messages
from slm.train.beginning.data import RunData, open_data, tokenizer_of
from slm.train.beginning.model import new_model
from slm.train.beginning.resumed import finished, resume_point
from slm.train.components.make import make_components
from slm.train.config import RunConfig
from slm.train.distributed.gradient_sync import make_gradient_sync
from slm.train.distributed.launch_files import restarts
from slm.train.distributed.ranks import LostPeerError, Ranks
from slm.train.distributed.shared_state import broadcast_resume_point, broadcast_tokenizer, make_shared_optimizer
from slm.train.environment import Environment, prepare
from slm.train.lora import held_base
from slm.train.lora.base import adapter_line, make_trained
from slm.train.memory import resource_errors
from slm.train.objective.make import make_objective, objective_line
from slm.train.objective.objective import Objective
from slm.train.optim.interface import Trained
from slm.train.parts import Parts
from slm.train.run import questions
from slm.train.run.checkpointer import Checkpointer
from slm.train.run.resume import ResumePoint, rounding, rounding_changes
from slm.train.run.run_directory import TOKENIZER, RunDirectory
from slm.train.run.run_log import RunLog
from slm.train.run.run_state import RunState, check_set_up
from slm.train.run.text_account import TextAccount
from slm.train.trainer import Trainer
from slm.train.validation import Validator

EndLine = Callable[[RunConfig], str | None]
"""What a command says of its run at the end; None: nothing."""


def start(config: RunConfig, ranks: Ranks, root: Path, *, end: EndLine = lambda config: None) -> int:
    """Train from the beginning or from a checkpoint. Returns the command's exit code.

    ``root``: the run's directory; on ranks other than 0 a temporary folder. ``end``: a further line on a run that has
    ended, printed before what to do next.
    """
    with RunDirectory(root, keep_after=LostPeerError) as directory, resource_errors(config.train, root):
        ranks.broadcast_from_main(lambda: config.check_processes(ranks.size))
        resume = ranks.broadcast_from_main(lambda: _open_directory(config, directory))
        environment = _environment(config, ranks)
        if config.train.qat:
            ranks.main_first(require_working_build)  # its rounding is llama.cpp's own, in this process
        components = make_components(config)
        point = broadcast_resume_point(ranks, lambda: resume_point(config, components, resume, root))
        if point.checkpoint and (line := finished(config, components, point.state)):
            print(f"{root} is finished: {line}")
            if ranks.main and (line := end(config)):
                print(line)
            return 0
        if ranks.main:
            show_files(config.data, print)
        tokenizer = broadcast_tokenizer(
            ranks, lambda: tokenizer_of(config, root, new=point.checkpoint is None), root / TOKENIZER
        )
        data = open_data(config, tokenizer, ranks, point)
        text = TextAccount.of(data.loader.plans, tokenizer, config) if ranks.main else TextAccount()
        first = new_model(config, tokenizer, ranks, root, environment, new=point.checkpoint is None)
        objective = ranks.main_first(
            lambda: make_objective(
                config, first.model, tokenizer, environment, root, ranks, new=point.checkpoint is None
            )
        )
        trained = make_trained(first.model, config, root, ranks)
        notes = (
            messages.small_vocabulary(config, tokenizer.vocab_size),
            fallback_line(first.model, environment, config.train),
            *first.notes,
            adapter_line(trained, config.lora),
            objective_line(config),
            *text.lines(config),
            messages.not_calibrated(config, data),
            *(each.note() for each in components),
        )
        messages.print_plan(config, first.model, tokenizer.vocab_size, environment, notes, ranks)
        asked = questions.prepare(config, root, main=ranks.main)
        run = _parts(config, root, ranks, environment, tokenizer, data, text, trained, objective, point, asked)
        trainer = Trainer(run, components, point)
        if changed := rounding_changes(point.state.get("rounding", {}), rounding(environment, config.train)):
            print(changed)
        _start_clock(run, point)
        directory.accept()
        code = trainer.train()
        print(f"{root}: {trainer.summary()}")
        if code == 0:
            if run.state.risen and not config.preference.on:
                print(messages.risen_line(config, run.state))
            if ranks.main and (line := end(config)):
                print(line)
            if run.questions:
                print(questions.exam_line(root))
            print(messages.next_line(root))
        return code


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
    lean = config.optim.within_backward or held_base.is_held(config)
    own: dict[str, Any] = {"bits": config.kernel_bits, "lean": lean}
    environment = ranks.main_first(lambda: prepare(config.train, threads=ranks.threads, **own))
    if (precision := ranks.broadcast_from_main(lambda: environment.precision)) != environment.precision:
        environment = prepare(config.train, threads=ranks.threads, precision=precision, **own)
    return environment


def _parts(
    config: RunConfig,
    root: Path,
    ranks: Ranks,
    environment: Environment,
    tokenizer: Tokenizer,
    data: RunData,
    text: TextAccount,
    trained: Trained,
    objective: Objective,
    point: ResumePoint,
    asked: questions.RunQuestions,
) -> Parts:
    """What the run is made of. Weights and optimizer as at its beginning."""
    train, model = config.train, trained.model
    optimizer = make_shared_optimizer(
        ranks,
        trained,
        config.optim,
        zero1=train.shard_optimizer,
        precision=environment.precision,
        kernels=environment.kernels,
    )
    state = RunState(train)
    if point.checkpoint:
        state.resume(point.state)
    # Before anything of the run is written; what follows takes little time, and is checked below.
    check_set_up(train, state.setup_seconds + ranks.broadcast_from_main(process_seconds))
    eot_id, lean = tokenizer.eot_id if train.mask_documents else None, config.optim.within_backward
    backend = make_backend(model, train, environment, eot_id, lean=lean)
    if backend.name == "autograd" and environment.compile:
        data.loader.pad()
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
        log=log.print,
        rollback_step=(lambda step: step % train.checkpoint_every == 0) if train.spike_factor else None,
    )
    return Parts(
        config=config,
        root=root,
        ranks=ranks,
        environment=environment,
        tokenizer=tokenizer,
        model=model,
        trained=trained,
        optimizer=optimizer,
        loader=data.loader,
        text=text,
        backend=backend,
        objective=objective,
        validator=Validator(
            data.held_out, tokenizer, model.config.vocab_size, train.micro_batch, objective, train.eval_blocks
        ),
        kept_blocks=data.kept_blocks,
        state=state,
        log=log,
        interrupt=interrupt,
        sync=sync,
        checkpointer=checkpointer,
        questions=asked,
    )


def _start_clock(run: Parts, point: ResumePoint) -> None:
    """Training begins now. UserError where the set-up has taken all of the run's time."""
    run.state.start_clock(run.ranks.broadcast_from_main(process_seconds))
    check_set_up(run.config.train, run.state.setup_seconds)
    run.log.events.start(
        run.state.step,
        point.checkpoint,
        run.model.config,
        run.environment,
        processes=run.ranks.size,
        text=run.text.record(),
    )
