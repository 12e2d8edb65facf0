"""A run's checkpoints: what they hold, when they are due, and the way back to one.

Tested in tests/train/test_resume.py, tests/train/test_reliability.py.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from slm.configuration import to_dict
from slm.model import checkpoint
from slm.train.components.component import Component, Content
from slm.train.distributed.shared_state import broadcast_resume_point, gather_loader_states, gather_state, restore
from slm.train.guards import Skips
from slm.train.parts import Parts
from slm.train.run.resume import ResumePoint, newest_intact, rounding, set_aside_rolled_back

CHECKPOINT_SECONDS = 15 * 60.0
"""After so much training time without one a checkpoint is due, whatever the steps."""
RESYNCED = "the processes' weights had drifted apart (processors that round differently?): all have rank 0's again"


class Saving:
    """Saves a run, and brings it back to what was saved."""

    def __init__(self, run: Parts, components: Sequence[Component], skips: Skips) -> None:
        self._run, self._components, self._skips = run, components, skips
        self._saved_elapsed = run.state.earlier_seconds
        """Seconds of training at the last checkpoint, the same on every rank."""

    def resume(self, point: ResumePoint) -> None:
        """Put back the tensors of the checkpoint at which the run resumes, and the state of components and guards."""
        run = self._run
        restore(run.ranks, point, run.trained, run.optimizer, self._components)
        run.backend.weights_changed()
        self._skips.load_state_dict(point.state["skips"])
        for each in self._components:
            each.load_state_dict(point.state.get(each.name, {}))

    def by_step(self, step: int) -> bool:
        """Whether a checkpoint of ``step`` is due whatever the time: these are the ones that rollbacks go to."""
        return step % self._run.config.train.checkpoint_every == 0

    def due(self) -> bool:
        """Whether a checkpoint is due, by steps or by time."""
        run = self._run
        since = run.sync.agreed_elapsed(run.state.elapsed) - self._saved_elapsed
        return self.by_step(run.state.step) or since >= CHECKPOINT_SECONDS

    def save(self, *, replace: bool = False) -> None:
        """Begin to write a checkpoint; ``replace``: also where there is one of this step."""
        run = self._run
        state = {
            **run.state.state_dict(),
            "skips": self._skips.state_dict(),
            **{each.name: own for each in self._components if (own := each.state_dict())},
            **gather_loader_states(run.ranks, run.loader.state_dict()),
            "rounding": rounding(run.environment, run.config.train),
            "config": to_dict(run.config),
        }
        with run.interrupt.saving(), ExitStack() as masters:
            for each in self._components:
                masters.enter_context(each.masters())
            tensors, resynced = gather_state(run.ranks, run.trained, run.optimizer, self._components)
            if resynced:
                for each in self._components:
                    each.resynced()
                run.backend.weights_changed()
                run.log.print(RESYNCED)
            content = Content(weights=run.model.state_dict(), tensors=tensors)
            for each in self._components:
                each.save(content)
            if run.ranks.main:
                snapshot = checkpoint.take_snapshot(
                    {**content.weights, **run.trained.merged()},
                    content.tensors,
                    run.trained.adapter_tensors(),
                    content.quantized,
                    base_fingerprint=run.trained.base_fingerprint,
                )
                run.checkpointer.save(run.state.step, snapshot, state | content.state, replace=replace)
        self._saved_elapsed = run.sync.agreed_elapsed(run.state.elapsed)

    def roll_back(self, loss: float, median: float) -> bool:
        """Go back to the newest checkpoint by steps; the data continues after what made the loss jump.

        A checkpoint that was due by time, or by a signal, must not change what the run becomes. It is passed over.
        False where there is no checkpoint by steps yet. A run that is killed before it saves again decides the same
        when it is resumed, since the guards decide by what the checkpoint holds.
        """
        run, state = self._run, self._run.state
        with run.interrupt.saving():
            run.checkpointer.wait()
            point = broadcast_resume_point(run.ranks, lambda: newest_intact(run.root, run.log.print, self.by_step))
            jump: dict[str, Any] = {"loss": loss, "median": median, "times": loss / median}
            if point.checkpoint is None:
                run.log.guard_event("spike", state.step, **jump)
                return False
            if run.ranks.main:
                # Those that are left are damaged or not by steps. A resumed run must not begin at one of them.
                set_aside_rolled_back(run.root, point.checkpoint)
            jump |= {"from": state.step, "to": point.state["step"], "tokens": state.tokens - point.state["tokens"]}
            restore(run.ranks, point, run.trained, run.optimizer, self._components)
            state.rewind(point.state)
            run.backend.weights_changed()
            for each in self._components:
                each.rolled_back(jump, point.state.get(each.name, {}))
            run.log.rewind(state.step)
            run.log.guard_event("rolled_back", state.step, **jump)
        return True
