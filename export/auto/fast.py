"""The file for a decode speed: chosen by predicted speeds, measured, and chosen again with what the measurement taught.

``make export`` and ``make bench-quant`` both make their ``auto:400tok/s`` files here.

Tested in tests/export/auto/test_fast.py.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from slm.export.auto.planner import Choice, Planner
from slm.export.target import Target

TRIES = 6
_AIM = 1.02
"""A choice is predicted to be this much faster than it has to be: predictions and measurements err by some percent."""
_LESS_LOSS = 0.9
"""Where a file is fast enough, the next choice is measured, too, if its predicted loss is this share of the file's."""
_SAME_SPEED = 0.97
"""Speeds that differ by less are the same."""
_HOPELESS = 1.1
"""A goal that is this much faster than what the first prediction and all measurements say is refused."""
_MAY_BE_FASTER = 1.25
"""The prediction for a type that was not measured in a file yet may be wrong by so much."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """The file to keep."""

    choice: Choice
    """With its measured speed, and ``tries``."""
    shortfall: str | None
    """One clause where no file was fast enough: what was asked for, and the fastest that was found."""
    hopeless: bool
    """Whether the first prediction did not come near the goal either."""


def fast_enough(
    planner: Planner, target: Target, measure: Callable[[Choice], float], log: Callable[[str], None]
) -> Found:
    """The choice of least loss among those that were measured to decode fast enough; where none was, the fastest.

    ``measure`` makes the file of a choice and gives its tokens per second. Files of a single type are among the choices
    everywhere. Where no mix meets the goal, those that may be faster than all so far are measured, too: predictions for
    types that no file has had yet are the least sure, and the right ones would never show.
    """
    tried: list[Choice] = []
    hopeless = False
    for _ in range(TRIES):
        choice = planner.choose(target, _AIM)
        if not tried:
            assert choice.decode_tok_s is not None
            hopeless = _HOPELESS * choice.decode_tok_s < target.value
        good = [each for each in tried if _meets(each, target)]
        if good:
            if choice.predicted_kl > _LESS_LOSS * _best(tried, target).predicted_kl or _known(planner, choice, tried):
                break
        elif _known(planner, choice, tried):
            if (single := _single(planner, target, tried)) is None:
                break
            choice = single
        measured = measure(choice)
        log(
            f"{target.spelled}: {choice.bits_per_weight:.2f} bits per weight, KL about {choice.predicted_kl:.2g} nats: "
            f"measured {measured:,.0f} tokens/s (predicted {choice.decode_tok_s:,.0f})"
        )
        planner.learn(choice, measured)
        tried.append(replace(choice, measured_tok_s=measured))
    best = _best(tried, target)
    tries: list[dict[str, float | None]] = [
        {
            "predicted_kl": each.predicted_kl,
            "bits_per_weight": each.bits_per_weight,
            "predicted_decode_tok_s": each.decode_tok_s,
            "measured_decode_tok_s": each.measured_tok_s,
        }
        for each in tried
    ]
    shortfall = None
    if not _meets(best, target):
        what = planner.workload.spelled(planner.threads)
        shortfall = (
            f"the fastest of {len(tried)} choice{'s' * (len(tried) != 1)} of types measured "
            f"{best.measured_tok_s:,.0f} tokens/s ({what})"
        )
    hopeless = hopeless and _HOPELESS * _rate(best) < target.value
    return Found(choice=replace(best, tries=tries), shortfall=shortfall, hopeless=hopeless)


def _single(planner: Planner, target: Target, tried: list[Choice]) -> Choice | None:
    """The fastest single type without a file so far, if it may be faster than all files so far."""
    new = [each for each in planner.singles(target) if not _known(planner, each, tried)]
    if not new:
        return None
    first = max(new, key=lambda each: each.decode_tok_s or 0.0)
    return first if _MAY_BE_FASTER * (first.decode_tok_s or 0.0) > max(map(_rate, tried)) else None


def _rate(choice: Choice) -> float:
    return choice.measured_tok_s or 0.0


def _meets(choice: Choice, target: Target) -> bool:
    return _rate(choice) >= target.value


def _known(planner: Planner, choice: Choice, tried: list[Choice]) -> bool:
    """Whether a file was made that is as fast as the choice's: an embedding that is looked up may differ."""
    return any(all(each.types[name] == choice.types[name] for name in planner.read_names) for each in tried)


def _best(tried: list[Choice], target: Target) -> Choice:
    good = [each for each in tried if _meets(each, target)]
    good = good or [each for each in tried if _rate(each) >= _SAME_SPEED * max(map(_rate, tried))]
    return min(good, key=lambda each: each.predicted_kl)
