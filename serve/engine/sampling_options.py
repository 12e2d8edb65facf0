"""How tokens are sampled where a request says nothing: the ``serve.sampling`` group, over what the model's file says.

A model's file may bring its own values, under ``general.sampling.*`` as llama.cpp's converter names them.

Tested in tests/serve/engine/test_sampling_options.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from slm.data.errors import UserError
from slm.serve.engine.protocol import SamplingDefaults


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingOptions:
    """The ``serve.sampling`` group. None: the model's own value, else ``SamplingDefaults``."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, (low, high) in _LIMITS.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise UserError(f"serve.sampling.{name} is {value}; it must be between {low:g} and {high:g}")

    def over(self, metadata: Mapping[str, Any]) -> SamplingDefaults:
        """The defaults for a model with this metadata in its file (values as they are, or as text). A value of the file
        that is out of range counts as none."""
        chosen = {}
        for each in fields(SamplingDefaults):
            given = getattr(self, each.name)
            if given is None and each.name in _KEYS:
                given = _number(metadata.get(_KEYS[each.name]), each.name)
            if given is not None:
                chosen[each.name] = given
        return SamplingDefaults(**chosen)


_LIMITS: dict[str, tuple[float, float]] = {
    "temperature": (0, 10),
    "top_k": (0, 2**31 - 1),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "repeat_penalty": (0.01, 10),
    "repeat_last_n": (0, 65536),
    "seed": (0, 2**63 - 1),
}
_KEYS = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repeat_penalty": "general.sampling.penalty_repeat",
    "repeat_last_n": "general.sampling.penalty_last_n",
}


def _number(value: Any, name: str) -> float | int | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    low, high = _LIMITS[name]
    if not (math.isfinite(number) and low <= number <= high):
        return None
    # A file has them as 32-bit floats: .8 is 0.800000011920929 there.
    return int(number) if name in ("top_k", "repeat_last_n") else float(f"{number:.6g}")
