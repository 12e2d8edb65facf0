"""A run's log of starts and ends, and with it the upkeep of its report and its loss plot."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slm.data.errors import one_line
from slm.machine.record import machine_record
from slm.model.config import ModelConfig
from slm.report import finite
from slm.train.environment import Environment
from slm.train.report.run_record import RunRecord


class EventLog:
    """Appends to a run's ``journal.jsonl`` and redraws ``report.html`` and ``loss.png``.

    Nothing here may stop a training run: an error is logged in one line, and the run goes on. A log that is not
    ``active`` (of a process that does not write the run's directory) does nothing.
    """

    def __init__(self, root: Path, *, active: bool = True, log: Callable[[str], None] = print) -> None:
        self.root, self.active, self._log = root, active, log
        self._record = RunRecord(root)
        self._reported: set[tuple[str, str]] = set()
        self._drawn: tuple[int, ...] = ()
        # Before the records that are to be computed again are dropped.
        self._guarded("report.html", self._record.update)
        self._seen_step = self._record.step()

    def start(
        self, step: int, resumed_from: Path | None, model: ModelConfig, environment: Environment, **facts: Any
    ) -> None:
        """The run begins, or resumes from a checkpoint. ``facts``: more about the process, for the report."""
        record = {
            "from": resumed_from and resumed_from.name,
            "again": max(0, self._seen_step - step),
            "n_params": model.n_params,
            "flops_per_token": self._record.flops_per_token(model),
            "vocab_size": model.vocab_size,
            "threads": environment.threads,
            "precision": environment.precision,
            "compiled": environment.compile,
        }
        self._write("start", step, {**record, **facts, "machine": machine_record()})
        self._guarded("report.html", lambda: self._report("running"))

    @contextmanager
    def until_the_end(self, step: Callable[[], int], signalled: Callable[[], int | None]) -> Iterator[None]:
        """Around the run: record how it ends. ``signalled`` gives the number of the signal that ended it."""
        try:
            yield
        except Exception as error:
            kind = type(error).__name__
            self.end(step(), "failed", reason=one_line(error, 500) or kind, error=kind)
            raise
        except BaseException:  # a second Ctrl-C
            self.end(step(), "stopped", signal=signalled() or signal.SIGINT)
            raise
        number = signalled()
        self.end(step(), "finished" if number is None else "stopped", signal=number)

    def end(self, step: int, status: str, **facts: Any) -> None:
        """The run is over: ``finished``, ``stopped`` by a signal, or ``failed``; then the last refresh."""
        self._write("end", step, {"status": status, **facts})
        self.refresh(status)

    def refresh(self, status: str = "running") -> None:
        """Bring ``report.html`` and ``loss.png`` up to date."""
        self._guarded("report.html", lambda: self._report(status))
        self._guarded("loss.png", self._plot)

    def _report(self, status: str) -> None:
        from slm.train.report.html import write_report

        self._record.update()
        write_report(self.root / "report.html", [self._record], statuses=[status])

    def _plot(self) -> None:
        from slm.train.report.plot import plot_losses

        seen = (len(self._record.curves), len(self._record.validations), self._record.step())
        if seen != self._drawn:  # the last validation and the end of a run are often one and the same picture
            plot_losses(self._record.plot_records(), self.root / "loss.png", self._record.name, self._record.loss_unit)
            self._drawn = seen

    def _write(self, event: str, step: int, facts: dict[str, Any]) -> None:
        record = finite({"event": event, "step": step, "time": time.time(), **facts})

        def write() -> None:
            path = self.root / "journal.jsonl"
            cut_off = path.exists() and path.stat().st_size > 0 and path.read_bytes()[-1:] != b"\n"
            with path.open("a", encoding="utf-8") as file:
                file.write(("\n" if cut_off else "") + json.dumps(record, ensure_ascii=False) + "\n")

        self._guarded("journal.jsonl", write)

    def _guarded(self, name: str, write: Callable[[], Any]) -> None:
        if not self.active:
            return
        try:
            write()
        except Exception as error:
            reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {one_line(error)}"
            if (name, reason) not in self._reported:
                self._reported.add((name, reason))
                self._log(f"warning: {self.root / name} could not be written ({reason}); training goes on")
