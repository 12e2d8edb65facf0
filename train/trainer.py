"""The loop of a training run, from its first step to its last checkpoint. ``train/start.py`` builds it.

Tested in tests/train/test_main.py, tests/train/test_resume.py, tests/train/test_reliability.py.
"""

import math
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from slm.configuration import to_dict
from slm.data.sources.mixture import latest_epoch
from slm.data.stream.loader import EndOfTextError, Loader
from slm.data.tokenizers.tokenizer import Tokenizer
from slm.evaluate.stories import story_coherence
from slm.machine.hardware import rss_bytes
from slm.model import checkpoint
from slm.model.transformer import LanguageModel
from slm.report import duration
from slm.runs import CALIBRATION, Run, checkpoint_step
from slm.train.backend import Backend
from slm.train.born_again import BornAgain
from slm.train.calibration.end_of_run import HEAD, HeadCalibration
from slm.train.config import RunConfig
from slm.train.distributed.gradient_sync import GradientSync
from slm.train.distributed.ranks import Ranks
from slm.train.distributed.shared_state import (
    broadcast_resume_point,
    gather_loader_states,
    gather_state,
    restore,
    synchronized_batches,
)
from slm.train.environment import Environment
from slm.train.guards import NonFiniteError
from slm.train.interrupt import Interrupt, StoppedError, Watcher, signal_name
from slm.train.objective import early_part
from slm.train.optim.average import Average
from slm.train.optim.interface import Optimizer
from slm.train.optim.trained import Trained
from slm.train.qat.fake_quant import FakeQuant
from slm.train.qat.moments import input_moments
from slm.train.report.samples import SAMPLES, entry
from slm.train.run.checkpointer import Checkpointer
from slm.train.run.metrics_window import MetricsWindow
from slm.train.run.questions import RunQuestions, score_line
from slm.train.run.resume import newest_intact, rounding, set_aside_rolled_back
from slm.train.run.run_log import RunLog
from slm.train.run.run_state import RunState
from slm.train.run.text_account import TextAccount
from slm.train.schedule import learning_rate
from slm.train.step import train_step
from slm.train.validation import Validator, sample

FEW_STEPS = 500
"""Every step of a run of at most so many is recorded."""
SLOW_SECONDS = 10.0
"""Steps that together take longer are recorded, however few they are."""
RESYNCED = "the processes' weights had drifted apart (processors that round differently?): all have rank 0's again"


@dataclass(kw_only=True)
class Trainer:
    """What a run is made of, and the loop that moves it step by step."""

    config: RunConfig
    root: Path
    """The run's directory; on ranks other than 0 a temporary folder."""
    ranks: Ranks
    environment: Environment
    tokenizer: Tokenizer
    model: LanguageModel
    trained: Trained
    """Those parameters that the optimizer updates: the model's, or an adapter's."""
    optimizer: Optimizer
    average: Average
    fake_quant: FakeQuant
    loader: Loader
    text: TextAccount
    backend: Backend
    born_again: BornAgain
    calibration: HeadCalibration
    validator: Validator
    state: RunState
    log: RunLog
    interrupt: Interrupt
    sync: GradientSync
    checkpointer: Checkpointer
    questions: RunQuestions

    def __post_init__(self) -> None:
        self._first_step = True
        self._length = self.config.train.seq_len
        """Tokens of the sequences that steps read."""
        self._step_seconds = 0.0
        """What a step took in the last metrics window."""
        self._last_step_seconds: float | None = None
        self._saved_elapsed = self.state.earlier_seconds
        """Seconds of training at the last checkpoint, the same on every rank."""

    def run(self) -> int:
        """Train to the end, or to a signal; the last state is saved either way. Returns the exit code."""
        saved = False
        with (
            self.interrupt,
            Watcher(self._hear, self.log.tick),
            self.log.events.until_the_end(lambda: self.state.step, lambda: self.interrupt.signal),
        ):
            try:
                self._ask_first()
                self._loop()
                self._end()
                saved = True
                with self.interrupt.saving():
                    self.checkpointer.wait()
                self._ask_last()
            except StoppedError:
                self.log.print("stopped before the first step was done: there was nothing to save yet")
            finally:
                with self.interrupt.saving():
                    self.checkpointer.close()
                    self.log.close()
                    self.loader.close()
        if self.ranks.main and self.interrupt and saved:
            how = "the same command" if self.config.resume == "auto" else "the same command with resume=auto"
            print(f"stopped at step {self.state.step:,}; {how} goes on from there")
        return self.interrupt.exit_code

    def _hear(self, number: int) -> None:
        """Acknowledge a stop signal, from another thread."""
        if number == signal.SIGHUP:  # there is nobody to tell, perhaps
            return
        if self._first_step:  # nothing is waited for
            self.log.print(f"{signal_name(number)}: stopping")
        else:
            self.log.stopping(signal_name(number))

    def _end(self) -> None:
        """What is due at the end of the run: quantization, a validation, the last checkpoint. At a signal the last."""
        state, train = self.state, self.config.train
        validated, impatient = state.validation.get("step") == state.step, state.out_of_patience
        if self._to_be_rounded(ended=not self.interrupt):
            self._begin_quantization()
            validated = False
        elif train.qat and not self.fake_quant.on and not self.interrupt:
            self.log.print(f"the run ended before train.qat={train.qat} began: it is not quantized")
        if self.calibration.on and not self.interrupt:
            validated = not self._calibrate() and validated
        if not validated and not self.interrupt:
            self._validate()
        if impatient:  # also where quantization made the losses begin anew: the run stays at its end
            state.worse = max(state.worse, train.patience)
        self._save(replace=not validated and not self.interrupt)

    def _ask_first(self) -> None:
        """The score of the model that the run begins with, on its held-out questions, and its answers."""
        if not self.questions:
            return
        if self.state.step:
            self.questions.resume(self.log.asked_first())
            return
        with self.interrupt.at_once():
            out, texts = self.questions.before(self.state.limit_seconds)
        self._write_texts(0, texts)
        self.log.asked(0, out, score_line(out, self.questions.what))

    def _ask_last(self) -> None:
        """The same questions for the checkpoint that other commands take: the best one. Nothing is trained any more."""
        if not self.questions or self.interrupt:
            return
        chosen = Run(root=self.root).checkpoint()
        checkpoint.load_into(self.model, checkpoint.load_weights(chosen), str(chosen))
        out, texts = self.questions.after(lambda: bool(self.interrupt))
        if self.interrupt:
            return
        if checkpoint_step(chosen) != self.questions.shown_at:
            for text in texts:
                self.log.print("  " + text.replace("\n", "\n  "))
        if self.questions.limited:
            self.log.print("some validations showed no answers: they would have taken over 2 % of the run's time")
        line = score_line(out, self.questions.what, self.log.asked_first(), chosen.name)
        self.log.asked(self.state.step, out, line)

    def summary(self) -> str:
        """One line on what came out."""
        text = f"{self.state.tokens:,} tokens in {duration(self.state.elapsed)}"
        if last := self.state.validation:
            unit = self.config.preference.loss_unit
            text += f"; validation {last['val_loss']:.4f} {unit}, {last['val_bits_per_byte']:.4f} bits per byte"
        return text

    # The loop.

    def _loop(self) -> None:
        state, train = self.state, self.config.train
        batches = synchronized_batches(self.ranks, self.loader, self.config.data, train.grad_accum)
        batches = self.calibration.counting(batches)
        due = state.step > 0 and state.step % train.eval_every == 0 and not self._last_validation_waits()
        if due and state.validation.get("step") != state.step:
            self._validate()  # the run was stopped during this validation
            if state.validation.get("step") == state.step:
                self._save(replace=True)  # its loss decides whether it is kept
        while not self.interrupt and self._fraction_done() < 1:
            if state.out_of_patience and not self.born_again.has_student(state.began):
                self.log.print(
                    f"step {state.step:,}: the last {train.patience} validations did not improve on "
                    f"{state.best_loss:.4f} {self.config.preference.loss_unit}: stopped early"
                )
                return
            try:
                self._step(batches)
            except EndOfTextError as error:
                if self.born_again.has_student(state.began):
                    self.log.print("the text ended before the second model of distill.born_again began: there is none")
                self.log.print(f"step {state.step:,}: {error}: {self.text.at_the_end()}")
                return

    def _step(self, batches: Iterator[np.ndarray]) -> None:
        """One optimizer step and what is due after it, unless a guard decides otherwise."""
        train, state = self.config.train, self.state
        self.checkpointer.check()
        if self.fake_quant.due(self._fraction_done()) and not self.fake_quant.waits(self._steps_left()):
            self._begin_quantization()
        if self.born_again.due(self._fraction_done(), state.began):
            self._begin_again()
            if self.interrupt:
                return
        fraction_done = self._fraction_done()
        part_done, options = self.born_again.part_done(fraction_done, state.began), self.born_again.options(state.began)
        if (bag := options.bag(part_done)) != state.bag:
            self._change_bag(bag)
        if (length := options.length(part_done)) != self._length:
            self._length = length
            whole = "this part" if self.config.distill.born_again else "the run"
            part = f"for the first {train.short_seq_share:.0%} of {whole}" if length < train.seq_len else "from here on"
            self.log.print(f"step {state.step:,}: sequences of {length:,} tokens {part}")
        vocab_size = self.model.config.vocab_size
        objective = self.born_again.objective(state.began, state.teacher)
        began = state.clock()
        objective, batches = early_part.of_step(options, vocab_size, part_done, objective, batches)
        try:
            # The first step waits for the compiler: a signal ends it at once.
            with (
                self.interrupt.at_once() if self._first_step else nullcontext(),
                self.log.doing(f"step {state.step + 1:,}", self._last_step_seconds),
            ):
                result = train_step(
                    self.trained,
                    self.optimizer,
                    batches,
                    grad_accum=train.grad_accum,
                    grad_clip=self.config.optim.grad_clip,
                    lr=learning_rate(self.config.optim, state.step - state.began, part_done),
                    backend=self.backend,
                    objective=objective,
                    sync=self.sync,
                    progress=self.log.done,
                )
        except NonFiniteError as error:
            if not state.guards.skips(error):
                raise
            self.optimizer.zero_grad(set_to_none=True)
            reason = str(error).partition(":")[0]
            self.log.guard_event("skipped", state.step, error=reason, skipped=state.guards.skipped)
            return
        if self.checkpointer.reads_live_tensors:
            raise RuntimeError("the weights changed while a checkpoint was written: before_update was not called")
        self.average.update()
        self._first_step = False
        state.step += 1
        self.fake_quant.after_update(state.step)
        state.tokens += result.tokens
        if (median := state.guards.spikes(result.loss)) is not None and self._roll_back(result.loss, median):
            return
        self._last_step_seconds = state.clock() - began
        state.window.add(
            loss=result.loss,
            grad_norm=result.grad_norm,
            tokens=result.tokens,
            seconds=self._last_step_seconds,
            data_seconds=result.data_seconds,
            counted=result.scored,
            sums=result.sums,
        )
        if slept := state.clock.slept():
            self.log.guard_event("slept", state.step, seconds=round(slept))
        if self._record_due():
            self._log_window()
        if state.step % train.eval_every == 0 and not self._last_validation_waits():
            self._validate()
        if self._checkpoint_due() and self._fraction_done() < 1:
            self._save()

    def _to_be_rounded(self, *, ended: bool = False) -> bool:
        """Whether the run, all of it done or ``ended`` before, lacks the quantized weights that it is to end with."""
        fraction_done = self._fraction_done()
        if ended and self.fake_quant.waits(0):  # patience or text ended it before the share that trains so
            fraction_done = 1.0
        return (ended or fraction_done >= 1) and self.fake_quant.due(fraction_done)

    def _last_validation_waits(self) -> bool:
        """Whether all steps are done, and the weights are yet to be quantized, or the head to be calibrated."""
        return self._to_be_rounded() or (self.calibration.on and self._fraction_done() >= 1)

    def _calibrate(self) -> bool:
        """Validate and save a calibrated head from here on. Whether it differs from the trained one."""
        readings = 1 + latest_epoch(self.loader.state_dict())
        with self.average.in_place():
            found = self.calibration(self.model, readings, self.ranks)
        if found is None:
            return False
        self.average.put(HEAD, found.head)
        facts = {"before": found.before, "after": found.after, "tokens": found.tokens}
        self.log.guard_event("calibrated", self.state.step, **facts)
        return True

    def _begin_quantization(self) -> None:
        """From this step on the model computes with quantized weights."""
        moments: dict[str, Tensor] = {}
        train, steps_left = self.config.train, self._steps_left()
        tokens = max(train.qat_share * self.state.tokens, (steps_left or 0) * train.tokens_per_step)
        if self.fake_quant.weighted:
            moments = self.ranks.broadcast_from_main(
                lambda: input_moments(
                    self.model,
                    self.tokenizer,
                    (self.root / CALIBRATION).read_text("utf-8"),
                    training_tokens=tokens,
                    kernels=self.environment.kernels,
                )
            )
        self.fake_quant.begin(moments, steps_left)
        self.backend.weights_changed()
        self.state.forget_losses()
        counts = Counter(self.fake_quant.types.values())
        types = ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
        facts = {"file_type": self.fake_quant.file_type, "tensors": counts.total(), "types": types}
        self.log.guard_event("quantized", self.state.step, **facts)

    def _begin_again(self) -> None:
        """The model, or the average of its weights, becomes the teacher of a new one."""
        state = self.state
        if state.validation.get("step") != state.step:
            self._validate()
        new = self.born_again.fresh(self.model)
        if self.interrupt:
            return  # the same is done when the run goes on
        self.checkpointer.before_update()
        with self.average.in_place():
            state.teacher = self.born_again.keep(self.model)
        self.average.begin_anew()
        self.model.load_state_dict(new.state_dict())
        self.optimizer.state.clear()
        self.backend.weights_changed()
        state.began, state.validation = state.step, {}  # what was validated is the teacher
        state.forget_losses()
        state.window = MetricsWindow()
        self.log.guard_event("born_again", state.step, share=self.config.distill.born_again)

    def _steps_left(self) -> float | None:
        """Optimizer steps to the end of the run; None at the first step of a run that time bounds."""
        train, step, done = self.config.train, self.state.step, self._fraction_done()
        if train.max_minutes is None:
            return train.max_steps - step
        return max(0.0, step / done * (1 - done)) if step and done else None

    def _change_bag(self, bag: int) -> None:
        """From this step on a position holds ``bag`` tokens; losses of other bags cannot be compared."""
        self.state.bag = bag
        self.state.forget_losses()
        self.state.window = MetricsWindow()
        if bag > 1:
            share = self.config.train.superposition_share
            self.log.guard_event("superposed", self.state.step, bag=bag, share=share)
        else:
            self.log.guard_event("single_tokens", self.state.step)

    def _fraction_done(self) -> float:
        return self.state.fraction_done(self.sync.agreed_elapsed(self.state.elapsed))

    def _record_due(self) -> bool:
        """Whether the steps since the last training record are to be recorded: they are many or have taken long, or the
        run has few."""
        step, train = self.state.step, self.config.train
        few = train.max_minutes is None and train.max_steps <= FEW_STEPS
        return step == 1 or step % train.log_every == 0 or few or self.state.window.seconds >= SLOW_SECONDS

    def _log_window(self) -> None:
        """Write the training record of the steps since the last one."""
        state, window, train = self.state, self.state.window, self.config.train
        record = {
            "step": state.step,
            "tokens": state.tokens,
            "loss": window.loss,
            "lr": self.optimizer.param_groups[0]["lr"],
            "grad_norm": window.grad_norm,
            "tokens_per_s": window.tokens / window.seconds,
            "data_wait": window.data_seconds / window.seconds,
            "rss_gb": rss_bytes() / 2**30,
            "elapsed_s": state.elapsed,
            **window.figures,
        }
        if state.bag > 1:
            record["bag"] = state.bag
        if self.ranks.size > 1:
            record["exchange_wait"] = self.sync.wait_seconds / window.seconds
            self.sync.wait_seconds = 0.0
        if state.guards.skipped or state.guards.rollbacks:
            record |= {"skipped": state.guards.skipped, "rollbacks": len(state.guards.rollbacks)}
        if train.minutes_of == "process":
            self._step_seconds = window.seconds / window.steps
            if not state.validation and not state.began and state.step > 1:
                scored = len(self.validator.blocks) * train.seq_len * train.validation_share(self.model.config)
                self._expect_closing(scored / record["tokens_per_s"])
        if train.max_minutes is not None:
            record["limit_s"] = state.limit_seconds
        # The first step waits for the compiler: its speed predicts nothing.
        self.log.training(record, None if state.step == 1 else state.seconds_left(record["tokens_per_s"]))
        state.window = MetricsWindow()

    def _validate(self) -> None:
        """Score the model, or the average of its weights where there is one; in quantized form where that is on."""
        began = self.state.clock()
        if self.average.on:
            with self.fake_quant.masters(), self.average.in_place(), self.fake_quant.rounded():
                self.backend.weights_changed()
                self._score()
            self.backend.weights_changed()
        else:
            self._score()
        self._expect_closing(self.state.clock() - began)

    def _expect_closing(self, validation_seconds: float) -> None:
        """Note how long the end of the run will take, where that counts: a validation, a save, half of a step.

        Not in the last validation: a run that is over must not seem to have time left.
        """
        if self.config.train.minutes_of == "process" and self._fraction_done() < 1:
            step, write = self._step_seconds / 2, self.checkpointer.write_s
            seconds = self.ranks.broadcast_from_main(
                lambda: (
                    validation_seconds
                    + self.calibration.seconds(self.model)
                    + write
                    + step
                    + self.questions.closing_seconds
                )
            )
            self.state.closing_seconds = seconds

    def _score(self) -> None:
        try:
            with self.log.doing("a validation"):
                result = self.validator(self.backend, self.sync.signal_received, self.ranks, self.log.done)
        except Exception:
            if not self.interrupt:  # Ctrl-C in a terminal also reaches a compiler that validation waits for
                raise
            return
        if result is None:
            self.sync.agree_on_signal()
            return
        record: dict[str, float | None] = {
            "step": self.state.step,
            "tokens": self.state.tokens,
            "val_loss": result.loss,
            "val_bits_per_byte": result.bits_per_byte,
            **{f"val_{name}": value for name, value in result.figures.items()},
        }
        stories = self.config.train.coherence_stories
        if stories and self.ranks.main and self.config.data.kind == "tales" and not self.interrupt:
            record |= {"coherence": story_coherence(self.model, self.tokenizer, stories)}
        self.state.validated(record)
        if self.ranks.main:
            self.log.validation(self.state.validation, self.state.best_loss if self.state.risen else None)
            self._write_samples()
            self.log.events.refresh()

    def _write_samples(self) -> None:
        """Let the model continue each prompt and answer the questions that are shown; the texts go to the terminal and
        to ``samples.md``."""
        train = self.config.train
        for prompt in train.sample_prompts:
            if self.interrupt:
                return
            text = sample(
                self.model,
                self.tokenizer,
                prompt,
                max_tokens=train.sample_tokens,
                temperature=train.sample_temperature,
            )
            self._write_texts(self.state.step, [text])
        if self.questions and not self.interrupt:
            last = self._fraction_done() >= 1
            texts = self.questions.at_validation(self.state.step, self.state.elapsed, last=last)
            self._write_texts(self.state.step, texts)

    def _write_texts(self, step: int, texts: list[str]) -> None:
        with (self.root / SAMPLES).open("a", encoding="utf-8") as file:
            for text in texts:
                self.log.print("  " + text.replace("\n", "\n  "))
                file.write(entry(step, text))

    # Checkpoints.

    def _by_step(self, step: int) -> bool:
        """Whether a checkpoint of ``step`` is due whatever the time: these are the ones that rollbacks go to."""
        return step % self.config.train.checkpoint_every == 0

    def _checkpoint_due(self) -> bool:
        minutes = self.config.train.checkpoint_minutes or math.inf
        since = self.sync.agreed_elapsed(self.state.elapsed) - self._saved_elapsed
        return self._by_step(self.state.step) or since >= 60 * minutes

    def _save(self, *, replace: bool = False) -> None:
        state = {
            **self.state.state_dict(),
            **gather_loader_states(self.ranks, self.loader.state_dict()),
            "rounding": rounding(self.environment, self.config.train),
            "config": to_dict(self.config),
        }
        with self.interrupt.saving(), self.fake_quant.masters():
            tensors, resynced = gather_state(self.ranks, self.trained, self.optimizer, self.average, self.fake_quant)
            tensors |= self.calibration.tensors(self.ranks)
            if resynced:
                self.fake_quant.resynced()
                self.backend.weights_changed()
                self.log.print(RESYNCED)
            if self.ranks.main:
                weights = self.model.state_dict() | self.average.weights()
                weights, more, quantized = self.fake_quant.checkpoint(weights)
                if quantized is not None:
                    state["qat"] = quantized.record()
                adapter, base = self.trained.adapter_tensors(), self.trained.base_fingerprint
                snapshot = checkpoint.take_snapshot(weights, tensors | more, adapter, quantized, base_fingerprint=base)
                self.checkpointer.save(self.state.step, snapshot, state, replace=replace)
        self._saved_elapsed = self.sync.agreed_elapsed(self.state.elapsed)
        if self._by_step(self.state.step):
            self.state.guards.saved()

    def _roll_back(self, loss: float, median: float) -> bool:
        """Go back to the newest checkpoint by steps; the data continues after what made the loss jump.

        A checkpoint that was due by time, or by a signal, must not change what the run becomes. It is passed over.
        False where there is no checkpoint by steps yet. A run that is killed before it saves again decides the same
        when it is resumed, since the guards decide by what the checkpoint holds.
        """
        state = self.state
        with self.interrupt.saving():
            self.checkpointer.wait()
            point = broadcast_resume_point(self.ranks, lambda: newest_intact(self.root, self.log.print, self._by_step))
            jump = {"loss": loss, "median": median, "times": loss / median}
            if point.checkpoint is None:
                self.log.guard_event("spike", state.step, **jump)
                return False
            if self.ranks.main:
                # Those that are left are damaged or not by steps. A resumed run must not begin at one of them.
                set_aside_rolled_back(self.root, point.checkpoint)
            jump |= {"from": state.step, "to": point.state["step"], "tokens": state.tokens - point.state["tokens"]}
            restore(self.ranks, point, self.trained, self.optimizer, self.average, self.fake_quant)
            self.calibration.load(point.tensors, self.ranks)
            state.rewind(point.state)
            self.backend.weights_changed()
            state.guards.rolled_back(point.state.get("guards", {}), jump)
            self.log.rewind(state.step)
            self.log.guard_event("rolled_back", state.step, **jump)
        return True
