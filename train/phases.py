"""``train.phases``: what the parts of a run read, as a list in which the place only grows.

Tested in tests/train/components/test_phases.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from slm.data.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One part of a run, from the end of the one before. After the last one steps read single tokens of whole
    sequences."""

    until: float
    """The share of the run after which it ends, above 0 and below 1."""
    bags: int = 1
    """Tokens of a bag, of which a position holds one: the model predicts the next bag. 1: single tokens."""
    seq_len: int | None = None
    """Tokens of the sequences into which ``train.seq_len`` is cut; they take less attention. None: it is not cut."""


def bags_fit(bag: int, seq_len: int) -> bool:
    """Whether bags of this many tokens divide a sequence, into two at least where they hold more than one."""
    return bag >= 1 and seq_len % bag == 0 and (bag == 1 or 2 * bag <= seq_len)


def check_phases(phases: Sequence[Phase], seq_len: int) -> None:
    """UserError where they do not follow each other, or do not fit sequences of ``seq_len`` tokens."""
    before = 0.0
    for each in phases:
        if not before < each.until < 1:
            raise UserError(
                f"train.phases: until={each.until:g} must be below 1 and above {before:g}, where the phase before "
                "ends: for example [{bags: 4, until: 0.1}, {seq_len: 128, until: 0.5}]"
            )
        before = each.until
        if each.bags > 1 and each.seq_len is not None:
            raise UserError("train.phases: a phase has bags or seq_len, not both: make two phases of it")
        if not bags_fit(each.bags, seq_len):
            raise UserError(
                f"train.phases: bags={each.bags} must divide train.seq_len={seq_len} into at least two bags, for "
                "example 4; 1 is single tokens"
            )
        if each.seq_len is not None and (each.seq_len < 1 or seq_len % each.seq_len):
            raise UserError(
                f"train.phases: seq_len={each.seq_len} must divide train.seq_len={seq_len}, for example "
                f"{max(1, seq_len // 4)}"
            )


def bag_of(phases: Sequence[Phase]) -> tuple[int, float]:
    """The tokens of the first phase's bags, and the share of the run for which they hold; 1 and 0 without bags."""
    first = phases[0] if phases else Phase(until=1.0)
    return (first.bags, first.until) if first.bags > 1 else (1, 0.0)


def short_of(phases: Sequence[Phase]) -> tuple[int, float]:
    """The tokens of the first short sequences, and the share of the run at which they end; 0 and 0 without any."""
    return next(((each.seq_len, each.until) for each in phases if each.seq_len), (0, 0.0))
