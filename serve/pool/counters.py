"""What is counted of one model since the server's start."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from serve.engine.messages import Delta
from serve.pool.histogram import BETWEEN_S, LATENCY_S, Histogram


@dataclass
class Totals:
    """Over all lives of the engine, and all times that the model was loaded."""

    loads: int = 0
    restarts: int = 0
    """Engines started in place of one that died."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    drafted_tokens: int = 0
    """Guesses at next tokens that were checked, of finished sequences."""
    accepted_tokens: int = 0
    """Of these, those that were right."""
    embedding_tokens: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    """Sequences by how they ended."""
    preempted: int = 0
    """By engines that have ended."""
    ttft: Histogram = field(default_factory=lambda: Histogram(LATENCY_S))
    itl: Histogram = field(default_factory=lambda: Histogram(BETWEEN_S))
    e2e: Histogram = field(default_factory=lambda: Histogram(LATENCY_S))


@dataclass(slots=True)
class Clock:
    """When things happened to a sequence."""

    submitted: float
    last: float | None = None
    """Its newest text; None before the first."""
    n_tokens: int = 0
    """Until then."""


def observe(totals: Totals, clock: Clock, event: Delta) -> None:
    """Counts the times of more text of a sequence."""
    now = time.perf_counter()
    n = event.completion_tokens - clock.n_tokens
    if clock.last is None:
        if n:
            totals.ttft.observe(now - clock.submitted)
    elif n > 0:
        totals.itl.observe((now - clock.last) / n, n)
    clock.last, clock.n_tokens = now, event.completion_tokens
    if event.finish:
        totals.e2e.observe(now - clock.submitted)
