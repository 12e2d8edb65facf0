"""The loop of a training run, from its first step to its last checkpoint. ``train/start.py`` builds what it runs.

Tested in tests/train/test_main.py, tests/train/test_resume.py, tests/train/test_reliability.py.
"""

import math
import signal
from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import numpy as np

from slm.data.stream.loader import EndOfTextError
from slm.report import duration
from slm.train.components.component import Component, Step
from slm.train.config import RESHARD
from slm.train.distributed.shared_state import synchronized_batches
from slm.train.guards import NonFiniteError, Skips
from slm.train.interrupt import StoppedError, Watcher, signal_name
from slm.train.loop.records import Records
from slm.train.loop.saving import Saving
from slm.train.loop.validations import Validations
from slm.train.optim.schedule import learning_rate
from slm.train.parts import Parts
from slm.train.run.resume import ResumePoint
from slm.train.step import StepResult, train_step


class Trainer:
    """Moves a run step by step. ``components``: what it adds to the loop, in the order of their hooks.

    ``point``: the checkpoint to go on from, or the run's beginning.
    """

    def __init__(self, run: Parts, components: Sequence[Component], point: ResumePoint) -> None:
        self.run, self._components = run, components
        self._skips = Skips(on=run.config.train.on_nonfinite == "skip")
        self._validations = Validations(run, components)
        self._records = Records(run, components, self._skips, self._validations)
        self._saving = Saving(run, components, self._skips)
        self._first_step = True
        self._last_step_seconds: float | None = None
        run.validate, run.forget_losses = self._validations.validate, self._forget_losses
        for each in components:
            each.attach(run)
        if point.checkpoint:
            self._saving.resume(point)
        run.optimizer.register_step_pre_hook(lambda *_: self._before_update())

    def train(self) -> int:
        """Train to the end, or to a signal; the last state is saved either way. Returns the exit code."""
        run, saved = self.run, False
        with (
            run.interrupt,
            Watcher(self._hear, run.log.tick),
            run.log.events.until_the_end(lambda: run.state.step, lambda: run.interrupt.signal),
        ):
            try:
                self._validations.ask_first()
                self._loop()
                self._end()
                saved = True
                with run.interrupt.saving():
                    run.checkpointer.wait()
                self._validations.ask_last()
            except StoppedError:
                run.log.print("stopped before the first step was done: there was nothing to save yet")
            finally:
                with run.interrupt.saving():
                    run.checkpointer.close()
                    run.log.close()
                    run.loader.close()
        if run.ranks.main and run.interrupt and saved:
            how = "the same command" if run.config.resume in ("auto", RESHARD) else "the same command with resume=auto"
            print(f"stopped at step {run.state.step:,}; {how} goes on from there")
        return run.interrupt.exit_code

    def summary(self) -> str:
        """One line on what came out."""
        state = self.run.state
        text = f"{state.tokens:,} tokens in {duration(state.elapsed)}"
        if last := state.validation:
            unit = self.run.config.preference.loss_unit
            text += f"; validation {last['val_loss']:.4f} {unit}, {last['val_bits_per_byte']:.4f} bits per byte"
        return text

    def _hear(self, number: int) -> None:
        """Acknowledge a stop signal, from another thread."""
        if number == signal.SIGHUP:  # there is nobody to tell, perhaps
            return
        if self._first_step:  # nothing is waited for
            self.run.log.print(f"{signal_name(number)}: stopping")
        else:
            self.run.log.stopping(signal_name(number))

    def _loop(self) -> None:
        run, train = self.run, self.run.config.train
        batches = synchronized_batches(run.ranks, run.loader, run.config.data, train.grad_accum)
        for each in self._components:
            batches = each.reading(batches)
        due = run.state.step > 0 and run.state.step % train.eval_every == 0 and not self._changes_at_end()
        if due and run.state.validation.get("step") != run.state.step:
            run.validate()  # the run was stopped during this validation
            if run.state.validation.get("step") == run.state.step:
                self._saving.save(replace=True)  # its loss decides whether it is kept
        while not run.interrupt and run.fraction_done() < 1:
            reason = next((text for each in self._components if (text := each.ends())), None)
            if reason:
                run.log.print(f"step {run.state.step:,}: {reason}: stopped early")
                return
            try:
                self._step(batches)
            except EndOfTextError as error:
                run.log.print(f"step {run.state.step:,}: {error}: {run.text.at_the_end()}")
                return

    def _step(self, batches: Iterator[np.ndarray]) -> None:
        """One optimizer step and what is due after it, unless a guard decides otherwise."""
        run, state = self.run, self.run.state
        run.checkpointer.check()
        step = Step(
            fraction_done=run.fraction_done(),
            number=state.step,
            objective=run.objective,
            batches=batches,
            grad_accum=run.config.train.grad_accum,
        )
        for each in self._components:
            each.before_step(step)
        if run.interrupt:
            return
        began = state.clock()
        if (result := self._update(step)) is None:
            return
        state.step += 1
        for each in self._components:
            each.after_update()
        state.tokens += result.tokens
        if (median := self._jump(result.loss)) is not None and self._saving.roll_back(result.loss, median):
            return
        self._last_step_seconds = state.clock() - began
        self._records.add(result, self._last_step_seconds)
        if state.step % run.config.train.eval_every == 0 and not self._changes_at_end():
            run.validate()
        if self._saving.due() and run.fraction_done() < 1:
            self._saving.save()

    def _update(self, step: Step) -> StepResult | None:
        """Forward, backward and update; None where the update was skipped."""
        run, state = self.run, self.run.state
        try:
            # The first step waits for the compiler: a signal ends it at once.
            with (
                run.interrupt.at_once() if self._first_step else nullcontext(),
                run.log.doing(f"step {state.step + 1:,}", self._last_step_seconds),
            ):
                result = train_step(
                    run.trained,
                    run.optimizer,
                    step.batches,
                    grad_accum=step.grad_accum,
                    grad_clip=run.config.optim.grad_clip,
                    lr=learning_rate(run.config.optim, step.number, step.fraction_done),
                    backend=run.backend,
                    objective=step.objective,
                    sync=run.sync,
                    progress=run.log.done,
                )
        except NonFiniteError as error:
            if not self._skips.skips(error):
                raise
            run.optimizer.zero_grad(set_to_none=True)
            reason = str(error).partition(":")[0]
            run.log.guard_event("skipped", state.step, error=reason, skipped=self._skips.count)
            return None
        if run.checkpointer.reads_live_tensors:
            raise RuntimeError("the weights changed while a checkpoint was written: before_update was not called")
        self._first_step = False
        self._skips.updated()
        return result

    def _before_update(self) -> None:
        self.run.checkpointer.before_update()
        for each in self._components:
            each.before_update()

    def _jump(self, loss: float) -> float | None:
        """What the loss is measured against, where the run is to go back from it."""
        found = (each.jumped(loss) for each in self._components)
        return next((median for median in found if median is not None), None)

    def _forget_losses(self) -> None:
        self.run.state.best_loss = math.inf
        for each in self._components:
            each.forget_losses()

    def _changes_at_end(self) -> bool:
        """Whether all steps are done, and the weights to be validated are yet to change."""
        return any(each.changes_at_end() for each in self._components)

    def _end(self) -> None:
        """What is due at the end of the run: what components do then, a validation, the last checkpoint. At a signal
        the last."""
        run = self.run
        validated = run.state.validation.get("step") == run.state.step
        if not run.interrupt:
            for each in self._components:
                validated = not each.at_end() and validated
            if not validated:
                run.validate()
        self._saving.save(replace=not validated and not run.interrupt)
