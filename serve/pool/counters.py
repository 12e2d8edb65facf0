"""What is counted of one model since the server's start, durations in buckets as Prometheus takes them."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate

from slm.serve.engine.protocol import Delta

LATENCY_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
INTER_TOKEN_S = (0.001, 0.002, 0.004, 0.006, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class Histogram:
    """``bounds``: inclusive upper bounds of the buckets in seconds, ascending. One more bucket takes what is above."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        """Sum of all durations, in seconds."""

    def observe(self, seconds: float, times: int = 1) -> None:
        """Counts a duration."""
        self._counts[bisect_left(self._bounds, seconds)] += times
        self.sum += seconds * times

    def buckets(self) -> list[tuple[str, int]]:
        """Cumulative counts by upper bound, written as Prometheus writes it. The last, ``+Inf``, counts all.

        This is what ``prometheus_client``'s ``HistogramMetricFamily.add_metric`` takes as ``buckets``.
        """
        names = [*map(str, self._bounds), "+Inf"]
        return list(zip(names, accumulate(self._counts), strict=True))


@dataclass(slots=True)
class SequenceTimes:
    """When a sequence was submitted and when its newest text came, in seconds of ``time.perf_counter``."""

    submitted: float
    newest_text: float | None = None
    """None before the first."""
    n_tokens: int = 0
    """Tokens generated up to then."""


@dataclass
class Counters:
    """They outlive the engine: restarts of it, and unloading and loading the model, do not reset them."""

    loads: int = 0
    restarts: int = 0
    """Engines started in place of one that died."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that were in the prefix cache."""
    prefill_s: float = 0.0
    """Seconds of all prompts, from their slots to their ends."""
    completion_tokens: int = 0
    decode_s: float = 0.0
    """Seconds of finished sequences, from the ends of their prompts."""
    drafted_tokens: int = 0
    """Draft tokens that were verified, of finished sequences."""
    accepted_tokens: int = 0
    """Draft tokens that were accepted."""
    embedding_tokens: int = 0
    dropped_messages: int = 0
    """Messages dropped from conversations longer than the context."""
    finished: Counter[str] = field(default_factory=Counter)
    """Sequences by how they ended."""
    preempted: int = 0
    """Preemptions by engines that have ended."""
    ttft: Histogram = field(default_factory=lambda: Histogram(LATENCY_S))
    itl: Histogram = field(default_factory=lambda: Histogram(INTER_TOKEN_S))
    e2e: Histogram = field(default_factory=lambda: Histogram(LATENCY_S))

    def observe(self, times: SequenceTimes, event: Delta) -> None:
        """Counts the latencies of a sequence's new text, and moves ``times`` on to it."""
        now = time.perf_counter()
        n_new = event.completion_tokens - times.n_tokens
        if times.newest_text is None:
            if n_new:
                self.ttft.observe(now - times.submitted)
        elif n_new > 0:
            self.itl.observe((now - times.newest_text) / n_new, n_new)
        times.newest_text, times.n_tokens = now, event.completion_tokens
        if event.finish:
            self.e2e.observe(now - times.submitted)
