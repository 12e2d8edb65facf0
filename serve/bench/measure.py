"""Measuring one server: its loads one after the other, and the figures of each."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from slm.serve.bench.contenders import Contender, running
from slm.serve.bench.load import Load, Report, run_load
from slm.serve.bench.workloads import Case

Figures = dict[str, Any]
"""The figures of one load; see ``summary``."""
Measured = dict[str, dict[str, list[Figures]]]
"""By workload and number of clients; one entry for each repetition."""


def measure(contender: Contender, model: Path, cases: list[Case], into: Measured) -> None:
    """Starts the server, warms it up, runs the cases, and adds the figures of each to ``into``."""
    with running(contender, model) as server:
        warm = [[{**cases[0].bodies[0][0], "prompt": "Warm up.", "max_tokens": 8}]]
        run_load(Load(port=server.port, clients=warm))
        for case in cases:
            before = server.cpu_s()
            with busy_processes(case.n_busy):
                report = run_load(Load(port=server.port, clients=case.bodies, arrivals=case.arrivals))
            used = {name: value - before.get(name, 0.0) for name, value in server.cpu_s().items()}
            figures = summary(report) | {f"cpu_{name}": value / report.wall_s for name, value in used.items()}
            into.setdefault(case.key, {}).setdefault(f"{case.n:g}", []).append(figures)
            print(f"{contender.name} {case.key} {case.n:g}: {figures['tokens_per_s']:.0f} tokens/s", file=sys.stderr)


@contextlib.contextmanager
def busy_processes(n: int) -> Iterator[None]:
    """So many processes that each want a core all the time, as a compiler does. Each has its own session, as a
    program in another terminal has."""
    command = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(command, start_new_session=True) for _ in range(n)]
    try:
        yield
    finally:
        for each in others:
            each.kill()
            each.wait()


def summary(report: Report) -> Figures:
    """The figures of one load, times in seconds. ``wave_*``: of the first requests, which came all at once."""
    done = report.completed
    tokens = sum(each.tokens for each in done)
    wave = [each.ttft_s for each in done if each.first_wave and each.ttft_s is not None]
    every = [each.ttft_s for each in done if each.ttft_s is not None]
    errors = [each.error for each in report.outcomes if each.error is not None]
    # An answer that comes as a whole has no decode rate.
    after_first = [(each.tokens - 1, each.total_s - (each.ttft_s or 0.0)) for each in done if each.ttft_s is not None]
    decode = [n / seconds for n, seconds in after_first if n > 0 and seconds > 0]
    return {
        "tokens_per_s": tokens / report.wall_s,
        "decode_tokens_per_s": median(decode) if decode else None,
        "ttft_p50_s": quantile(every, 0.5),
        "ttft_p95_s": quantile(every, 0.95),
        "wave_ttft_p50_s": quantile(wave, 0.5),
        "wave_ttft_p95_s": quantile(wave, 0.95),
        "longest_gap_s": max((each.longest_gap_s for each in done), default=None),
        "e2e_p95_s": quantile([each.total_s for each in done], 0.95),
        "requests": len(report.outcomes),
        "failed": len(errors),
        "error": errors[0] if errors else None,
        "prompt_tokens": sum(each.prompt_tokens for each in done),
        "cached_tokens": sum(each.cached_tokens for each in done),
        "cpu_client": report.cpu_s / report.wall_s,
    }


def quantile(values: list[float], q: float) -> float | None:
    """By linear interpolation; None where there are no values."""
    if not values:
        return None
    ordered = sorted(values)
    at = q * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def median_figures(repeats: list[Figures]) -> Figures:
    """The median of each figure; failures are added up, and the first error is kept."""
    merged: Figures = {}
    for key in repeats[0]:
        values = [each[key] for each in repeats if each.get(key) is not None]
        if key == "failed":
            merged[key] = sum(values)
        elif key == "error":
            merged[key] = values[0] if values else None
        else:
            merged[key] = median(values) if values else None
    return merged
