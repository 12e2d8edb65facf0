"""A length of time as a person types it: ``90s``, ``30m``, ``8h``, ``3d``."""

import math
import re

from slm.data.errors import UserError

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
"""Seconds of each unit."""
_PART = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


def seconds_of(text: str, name: str = "budget") -> float:
    """Seconds of ``text``: numbers with units, the larger unit first (``1h30m``).

    UserError, which calls the option ``name``, for anything else, and for no time at all.
    """
    parts = _PART.findall(text)
    units = [unit for _, unit in parts]
    in_order = units == sorted(set(units), key="dhms".index)
    seconds = math.fsum(float(number) * UNITS[unit] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != text or not in_order or not 0 < seconds < math.inf:
        raise UserError(
            f"{name}={text} is not a length of time: give a number and a unit, as in 90s, 30m, 8h, 1h30m or 3d"
        )
    return seconds
