"""What ``quant=auto...`` asks for: the goal that a type per tensor is chosen for.

- ``auto``: the fastest decoding on this machine. One percent of added loss has to save ten percent of a token's time,
  and the loss may rise by one percent at most.
- ``auto:400tok/s``: the least loss among choices that decode at least this many tokens per second on this machine: one
  sequence behind a prompt of 512 tokens, with the command's threads (``slm/llama/speed/workload.py``; a shorter prompt
  where the model's context is shorter). What counts is the finished file's measured speed.
- ``auto:4.5``: the least loss at that many bits per weight, over all weights of the file.
- ``auto:60MB``: the least loss in a file of at most that length (MB, GB: 10^6, 10^9 bytes; MiB, GiB: 2^20, 2^30).
- ``auto:1%``: the smallest file with at most that added loss. Added loss: the mean Kullback-Leibler divergence of
  the file's predictions from the checkpoint's, nats per token; 1% stands for ln(1.01), at which perplexity rises by one
  percent where the checkpoint's own predictions hold. ``auto:0.01nats`` is the same in nats.
"""

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from slm.data.errors import UserError

FASTEST_LOSS = math.log(1.01)
"""The most that ``auto`` without a number may add to the loss, nats per token."""
_BYTES = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*([a-z%/]*)")
_EXAMPLES = (
    "auto, auto:4.5 (bits per weight), auto:60MB (file size), auto:400tok/s (decode speed), auto:1% (added loss) or "
    "auto:0.01nats"
)


@dataclass(frozen=True, kw_only=True)
class Target:
    """One goal."""

    goal: Literal["speed", "bits", "size", "loss", "decode"]
    value: float
    """speed and loss: the most that may be added, nats per token; bits: per weight; size: bytes of the file; decode:
    the least tokens per second."""
    spelled: str
    """As it is written in ``quant=``: one spelling per goal."""
    encoding: str
    """The last part of the file's name."""


def is_target(word: str) -> bool:
    """Whether a word of ``quant=`` asks for a choice rather than a type."""
    return word.strip().lower().partition(":")[0] == "auto"


def parse_target(word: str) -> Target:
    """The goal that ``word`` names. UserError, in one line, where it names none."""
    head, colon, text = word.strip().lower().partition(":")
    assert head == "auto"
    if not colon:
        return Target(goal="speed", value=FASTEST_LOSS, spelled="auto", encoding="auto")
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        raise UserError(f"quant {word!r} is not a goal; give {_EXAMPLES}")
    number, unit = match.groups()
    value = float(number)
    if value <= 0:
        raise UserError(f"quant {word!r} must be more than 0; give {_EXAMPLES}")
    short = format(Decimal(number).normalize(), "f")  # what is shown is read again, so no exponent
    if unit in ("", "bpw", "bits"):
        if not 1 <= value <= 16:
            raise UserError(f"quant {word!r} names {short} bits per weight; files have 2.7 to 8.5 (60MB is a size)")
        return Target(goal="bits", value=value, spelled=f"auto:{short}", encoding=f"auto-{short}bpw")
    if unit == "%":
        if value > 100:
            raise UserError(f"quant {word!r} lets the loss rise by more than 100 %; give for example auto:1%")
        loss = math.log1p(value / 100)
        return Target(goal="loss", value=loss, spelled=f"auto:{short}%", encoding=f"auto-{short}pct")
    if unit in ("nat", "nats"):
        return Target(goal="loss", value=value, spelled=f"auto:{short}nats", encoding=f"auto-{short}nats")
    if unit in ("tok/s", "tokens/s", "t/s"):
        if value >= 1e6:
            raise UserError(f"quant {word!r} asks for a million tokens per second or more; give {_EXAMPLES}")
        return Target(goal="decode", value=value, spelled=f"auto:{short}tok/s", encoding=f"auto-{short}tps")
    if unit in _BYTES:
        shown = unit[0].upper() + unit[1:].replace("b", "B")
        return Target(
            goal="size", value=value * _BYTES[unit], spelled=f"auto:{short}{shown}", encoding=f"auto-{short}{shown}"
        )
    raise UserError(f"quant {word!r} has the unit {unit!r}, which is none; give {_EXAMPLES}")
