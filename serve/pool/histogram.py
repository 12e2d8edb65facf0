"""Counts of durations in buckets, as Prometheus takes them."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

LATENCY_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
INTER_TOKEN_S = (0.001, 0.002, 0.004, 0.006, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class Histogram:
    """``bounds``: inclusive upper bounds of the buckets in seconds, ascending. One more bucket takes what is above."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        """Of all durations, in seconds."""

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
