"""What each step of an export took: time, processor time, and the most memory held during it.

Tested in tests/export/test_steps.py.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from slm import report
from slm.machine.hardware import recent_peak_rss_bytes, reset_peak_rss


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step that has ended."""

    step: str
    seconds: float
    processor_seconds: float
    """Processor time of this process, over all threads, in seconds."""
    peak_rss_mb: float
    """The most resident memory of this process during the step, mapped files included, 10^6 bytes. Where the system
    cannot tell (outside Linux), the most so far."""


class Steps:
    """The steps of one command, in their order."""

    def __init__(self) -> None:
        self.ended: list[Step] = []

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure what happens inside. Steps of one name count as one; steps do not nest."""
        reset_peak_rss()
        began, processor_s = time.perf_counter(), time.process_time()
        yield
        self._add(
            Step(
                step=name,
                seconds=time.perf_counter() - began,
                processor_seconds=time.process_time() - processor_s,
                peak_rss_mb=recent_peak_rss_bytes() / 1e6,
            )
        )

    def _add(self, new: Step) -> None:
        for number, old in enumerate(self.ended):
            if old.step == new.step:
                self.ended[number] = Step(
                    step=new.step,
                    seconds=old.seconds + new.seconds,
                    processor_seconds=old.processor_seconds + new.processor_seconds,
                    peak_rss_mb=max(old.peak_rss_mb, new.peak_rss_mb),
                )
                return
        self.ended.append(new)

    def record(self) -> dict[str, Any]:
        """For the record of an export: ``steps``, their ``seconds`` together and the largest ``peak_rss_mb``."""
        return {
            "steps": [asdict(each) for each in self.ended],
            "seconds": sum(each.seconds for each in self.ended),
            "peak_rss_mb": max((each.peak_rss_mb for each in self.ended), default=0.0),
        }


def show_steps(record: dict[str, Any]) -> None:
    """The table of an export's steps."""
    report.table(
        "Time and memory",
        ["step", "seconds", "processor seconds", "peak MB"],
        [
            [each["step"], *(f"{each[key]:,.1f}" for key in ("seconds", "processor_seconds")), _mb(each)]
            for each in record["steps"]
        ]
        + [["all", f"{record['seconds']:,.1f}", f"{_processor(record):,.1f}", _mb(record)]],
        caption=(
            "processor seconds: of all threads together; peak: the most resident memory of the process during the step "
            "(10^6 bytes, mapped files included)"
        ),
    )


def _mb(each: dict[str, Any]) -> str:
    return f"{each['peak_rss_mb']:,.0f}"


def _processor(record: dict[str, Any]) -> float:
    return float(sum(each["processor_seconds"] for each in record["steps"]))
