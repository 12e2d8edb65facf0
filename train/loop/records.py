"""A run's training records: when they are due, and what they hold.

Tested in tests/train/test_main.py, tests/train/run/test_metrics_window.py.
"""

from collections.abc import Sequence

from slm.machine.hardware import rss_bytes
from slm.train.components.component import Component
from slm.train.guards import Skips
from slm.train.loop.validations import Validations
from slm.train.parts import Parts
from slm.train.run.metrics_window import MetricsWindow
from slm.train.step import StepResult

LOG_EVERY = 10
"""Steps of a record."""
FEW_STEPS = 500
"""Every step of a run of at most this many is recorded."""
SLOW_SECONDS = 10.0
"""Steps that together take longer are recorded, however few they are."""


class Records:
    """Writes a record of the steps since the last one."""

    def __init__(self, run: Parts, components: Sequence[Component], skips: Skips, validations: Validations) -> None:
        self._run, self._components, self._skips, self._validations = run, components, skips, validations

    def add(self, result: StepResult, seconds: float) -> None:
        """Take in a step that took this many ``seconds``; write the record where it is due."""
        state = self._run.state
        state.window.add(
            loss=result.loss,
            grad_norm=result.grad_norm,
            tokens=result.tokens,
            seconds=seconds,
            data_seconds=result.data_seconds,
            counted=result.scored,
            sums=result.sums,
        )
        if slept := state.clock.slept():
            self._run.log.guard_event("slept", state.step, seconds=round(slept))
        if self._due():
            self._write()

    def _due(self) -> bool:
        """Whether the steps since the last record are many or have taken long, or the run has few."""
        step, train = self._run.state.step, self._run.config.train
        few = train.max_minutes is None and train.max_steps <= FEW_STEPS
        return step == 1 or step % LOG_EVERY == 0 or few or self._run.state.window.seconds >= SLOW_SECONDS

    def _write(self) -> None:
        run, state, window, train = self._run, self._run.state, self._run.state.window, self._run.config.train
        record = {
            "step": state.step,
            "tokens": state.tokens,
            "loss": window.loss,
            "lr": run.optimizer.param_groups[0]["lr"],
            "grad_norm": window.grad_norm,
            "tokens_per_s": window.tokens / window.seconds,
            "data_wait": window.data_seconds / window.seconds,
            "rss_gb": rss_bytes() / 2**30,
            "elapsed_s": state.elapsed,
            **window.figures,
        }
        if run.ranks.size > 1:
            record["exchange_wait"] = run.sync.wait_seconds / window.seconds
            run.sync.wait_seconds = 0.0
        if self._skips.count:
            record["skipped"] = self._skips.count
        for each in self._components:
            record |= each.record()
        if train.max_minutes is not None:
            self._validations.step_seconds = window.seconds / window.steps
            if not state.validation and state.step > 1:
                scored = len(run.validator.blocks) * train.seq_len * train.validation_share(run.model.config)
                self._validations.expect_closing(scored / record["tokens_per_s"])
        if train.max_minutes is not None:
            record["limit_s"] = state.limit_seconds
        # The first step waits for the compiler: its speed predicts nothing.
        run.log.training(record, None if state.step == 1 else state.seconds_left(record["tokens_per_s"]))
        state.window = MetricsWindow()
