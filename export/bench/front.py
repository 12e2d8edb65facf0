"""Which types no other beats, and which one to take.

Tested in tests/export/bench/test_page.py.
"""

from collections.abc import Sequence
from typing import Any

from slm.export.target import FASTEST_LOSS

AXES = {"size": "size_mib", "decode": "decode_tok_s", "prefill": "prefill_tok_s"}
"""What quality is set against: a name, and the row's key."""


def on_front(rows: Sequence[dict[str, Any]], axis: str) -> list[bool]:
    """Whether no other row has a smaller or equal KL and is better by the axis (smaller, or faster), per row."""
    sign = 1 if axis == "size" else -1
    points = [(sign * row[AXES[axis]], row["kl"]) for row in rows]
    return [
        not any(other != point and other[0] <= point[0] and other[1] <= point[1] for other in points)
        for point in points
    ]


def fronts(rows: Sequence[dict[str, Any]]) -> list[str]:
    """For each row the axes that it is best on, as a person reads them: ``size, decode``."""
    axes = [axis for axis, key in AXES.items() if all(row[key] is not None for row in rows)]
    flags = {axis: on_front(rows, axis) for axis in axes}
    return [", ".join(axis for axis in axes if flags[axis][i]) for i in range(len(rows))]


def recommended(rows: Sequence[dict[str, Any]]) -> int | None:
    """The index of the row to take; None where only the reference was measured. ``rows``: the reference first."""
    others = list(enumerate(rows))[1:]
    good = [each for each in others if each[1]["kl"] <= FASTEST_LOSS]
    if not others:
        return None
    if not good:
        return min(others, key=lambda each: each[1]["kl"])[0]
    if _timed(rows):
        fastest = max(row["decode_tok_s"] for _, row in good)
        # Rates differ by some percent from run to run: among about equals the better one counts.
        return min(
            (each for each in good if each[1]["decode_tok_s"] >= 0.95 * fastest), key=lambda each: each[1]["kl"]
        )[0]
    return min(good, key=lambda each: each[1]["size_mib"])[0]


def _timed(rows: Sequence[dict[str, Any]]) -> bool:
    return all(row["decode_tok_s"] is not None for row in rows)


def recommendation(rows: Sequence[dict[str, Any]]) -> str:
    """One sentence: which type to take, and why. ``rows``: the reference first."""
    index = recommended(rows)
    if index is None:
        return "Nothing to recommend: no type but the reference was measured."
    reference, best = rows[0], rows[index]
    share = f"{best['size_mib'] / reference['size_mib']:.0%}"
    if best["kl"] > FASTEST_LOSS:
        return (
            f"Take {best['label']}: no type stays within 1 % of the reference (KL {FASTEST_LOSS:.3g} nats), and it "
            f"comes nearest, with {best['kl']:.2g} nats at {share} of the size."
        )
    if _timed(rows):
        return (
            f"Take {best['label']}: of the types within 1 % of the reference (KL at most {FASTEST_LOSS:.3g} nats) it "
            f"has the least loss among those that decode fastest on this machine (within 5 %), with "
            f"{best['decode_tok_s']:,.0f} tokens/s, {best['decode_tok_s'] / reference['decode_tok_s']:.1f} times the "
            f"reference's, at {share} of its size and a KL of {best['kl']:.2g}."
        )
    return (
        f"Take {best['label']}: it is the smallest file within 1 % of the reference (KL at most {FASTEST_LOSS:.3g} "
        f"nats), at {share} of its size with a KL of {best['kl']:.2g}; no speeds were measured."
    )
