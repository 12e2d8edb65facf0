"""Checkpoints written while training goes on: one at a time, the newest and the best kept."""

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from slm.data.errors import UserError
from slm.machine.memory import available_bytes
from slm.model import checkpoint
from slm.model.config import ModelConfig
from slm.model.snapshot import Snapshot
from slm.runs import best_checkpoint, checkpoint_step, list_checkpoints, point_best, point_latest
from slm.train.run.resume import remove_rolled_back

WRITER_NICENESS = 5
"""Added to the writing thread's niceness, so that training's threads go first."""
SPARE_BYTES = 256 << 20
"""Memory that a copy of the state must leave free, bytes. Otherwise the update waits until the state is written."""


class Checkpointer:
    """Writes a run's checkpoints in its own thread (``background=False``: in the caller's).

    ``before_update`` must be called before weights or moments change. An error in the thread is raised by the next
    call of ``check``, ``save`` or ``wait``. ``log`` is called with a line about each checkpoint and each delay.
    ``rollback_step``: of the steps for which it is true the newest checkpoint is kept, too.
    """

    def __init__(
        self,
        root: Path,
        config: ModelConfig,
        save_tokenizer: Callable[[Path], None],
        *,
        keep_last: int,
        background: bool = True,
        log: Callable[[str], None],
        rollback_step: Callable[[int], bool] | None = None,
    ) -> None:
        self._root, self._config, self._save_tokenizer = root, config, save_tokenizer
        self._keep_last, self._background, self._log = keep_last, background, log
        self._rollback_step = rollback_step
        self._thread: threading.Thread | None = None
        self._snapshot: Snapshot | None = None
        self._error: BaseException | None = None
        self._messages: list[str] = []
        self._linkless = False
        self.stalled_s = 0.0
        """Seconds for which training waited for the last save."""
        self.write_s = 0.0
        """Seconds from the beginning to the end of the last save that was completed."""

    def save(self, step: int, snapshot: Snapshot, state: dict[str, Any], *, replace: bool = False) -> None:
        """Begin to write the checkpoint of ``step``; the one before is waited for.

        ``replace``: also where it is there already, since the run has been validated or quantized at this step since.
        """
        if self.busy:
            self._log(f"step {step:,}: waiting for the checkpoint before, which is still being written")
        self.wait()
        path = self._root / "checkpoints" / f"step-{step:08d}"
        if path.exists() and not replace:
            return  # saved by this process, or resumed from, hence verified: the state of a step does not change
        began = perf_counter()
        self._snapshot = snapshot
        if self._background:
            self._thread = threading.Thread(target=self._write, args=(path, step, snapshot, state), name="checkpoint")
            self._thread.start()
            self.stalled_s = perf_counter() - began
        else:
            self._write(path, step, snapshot, state)
            self.stalled_s = perf_counter() - began
            self.check()

    def before_update(self) -> None:
        """Weights and moments are about to change: copy what the writer has not read of them yet."""
        if self._snapshot is None:
            return
        began = perf_counter()
        unread = self._snapshot.unread()
        if unread and available_bytes() < unread + SPARE_BYTES:
            self._log(f"too little memory for a copy of the state ({unread:,} bytes): waiting for the checkpoint")
            self._snapshot.wait_read()
        self._snapshot.detach()
        self._snapshot = None
        self.stalled_s += perf_counter() - began

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def reads_live_tensors(self) -> bool:
        """Whether the checkpoint that is being written still reads training's own tensors."""
        return self._snapshot is not None

    def check(self) -> None:
        """Log the writing thread's messages; raise its error."""
        while self._messages:
            self._log(self._messages.pop(0))
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def wait(self) -> None:
        """Wait until nothing is being written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._snapshot = None
        self.check()

    def close(self) -> None:
        """Wait until nothing is being written; an error is logged, not raised."""
        try:
            self.wait()
        except Exception as error:
            self._log(f"warning: {error}")

    def _write(self, path: Path, step: int, snapshot: Snapshot, state: dict[str, Any]) -> None:
        began = perf_counter()
        if self._background and sys.platform == "linux":  # elsewhere it would be the whole process
            # Where training itself has a lower priority (nice -n 19), only root could raise the writer's.
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), WRITER_NICENESS)
        try:
            checkpoint.write_checkpoint(path, self._config, snapshot, self._save_tokenizer, state=state)
            self._point(point_latest, self._root)
            self._retain()
            self.write_s = perf_counter() - began
            self._messages.append(f"step {step:,}: saved {path} ({self.write_s:.1f} s)")
        except BaseException as error:
            self._error = error
        finally:
            snapshot.release()

    def _point(self, link: Callable[..., None], *arguments: Path) -> None:
        """Set one of the links that only spare typing; where the folder or its disk does not allow it, say so once."""
        try:
            link(*arguments)
        except OSError as error:
            if not self._linkless:
                self._messages.append(f"warning: runs/latest or best was not set: {error}")
            self._linkless = True

    def _retain(self) -> None:
        """Remove all but the newest ``keep_last`` checkpoints, the best one, and the one that a rollback goes to."""
        try:
            best = best_checkpoint(self._root)
            if best is not None:
                self._point(point_best, self._root, best)
            paths, counts = list_checkpoints(self._root), self._rollback_step
            rollback = [path for path in paths if counts is not None and counts(checkpoint_step(path))][-1:]
            for old in paths[: -self._keep_last]:
                if old not in (best, *rollback):
                    checkpoint.remove(old)
            remove_rolled_back(self._root)
        except OSError as error:
            raise UserError(f"old checkpoints in {self._root / 'checkpoints'} cannot be removed: {error}") from error
