"""Counts of durations in buckets, as Prometheus takes them."""

from __future__ import annotations

from bisect import bisect_left

LATENCY_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
BETWEEN_S = (0.001, 0.002, 0.004, 0.006, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class Histogram:
    """``bounds``: upper ends of the buckets in seconds, ascending; what is above all of them is counted, too."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        """Counts a duration."""
        self._counts[bisect_left(self._bounds, seconds)] += times
        self._sum += seconds * times

    def lines(self, name: str, labels: str = "") -> list[str]:
        """Cumulative buckets, sum and count."""
        before = labels + "," if labels else ""
        braced = f"{{{labels}}}" if labels else ""
        out, total = [], 0
        for bound, count in zip((*self._bounds, "+Inf"), self._counts, strict=True):
            total += count
            out.append(f'{name}_bucket{{{before}le="{bound}"}} {total}')
        return [*out, f"{name}_sum{braced} {self._sum:.6f}", f"{name}_count{braced} {total}"]
