"""Numbers, times and long lists in the form in which a report shows them."""

import math
import time
from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")


def number_text(value: float | None, digits: int = 4) -> str:
    """A loss or a rate with ``digits`` decimals; a dash for None."""
    return "–" if value is None else f"{value:.{digits}f}"


def count_text(value: float | None) -> str:
    """A count; one of a million or more has four significant digits: ``512,000``, ``2.886M``."""
    if value is None:
        return "–"
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if value >= size:
            return f"{float(f'{value / size:.4g}'):g}{letter}"
    return f"{value:,.0f}"


def time_text(seconds: float | None) -> str:
    """Seconds since 1970 as local date and time."""
    return "–" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def fact_text(value: Any) -> str:
    """A recorded fact in a few characters."""
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def rounded(column: Iterable[float | None], digits: int = 5) -> list[float | None]:
    """Numbers with ``digits`` significant digits, which keeps a page short; None for what is not finite."""
    out: list[float | None] = []
    for value in column:
        if value is None or not math.isfinite(value):
            out.append(None)
            continue
        short = float(f"{value:.{digits}g}")
        out.append(int(short) if short.is_integer() else short)
    return out


def thin_out(items: list[T], limit: int) -> list[T]:
    """At most ``limit`` of ``items``, evenly spaced, the first and the last among them."""
    if len(items) <= limit:
        return items
    picks = np.unique(np.linspace(0, len(items) - 1, limit).round().astype(int))
    return [items[int(pick)] for pick in picks]
