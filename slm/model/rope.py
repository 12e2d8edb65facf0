"""Rotary positions: the frequency of each pair of values, and the scalings by which models are made to read longer
contexts than they were trained with.

Tested in tests/slm/model/test_rope.py.
"""

import contextlib
import math
from typing import TYPE_CHECKING, Any, Protocol

from slm.data.errors import UserError

if TYPE_CHECKING:  # the configuration reads scalings, before threads are set and torch may come
    from torch import Tensor

_NEEDED = {
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "linear": ("factor",),
    "yarn": ("factor", "original_max_position_embeddings"),
    "longrope": ("factor", "original_max_position_embeddings"),
}
"""Scalings that are computed here, and in llama.cpp, with the numbers that they need."""
BETA_FAST, BETA_SLOW = 32.0, 1.0
"""YaRN: turns within the original context, above which a pair keeps its frequency and below which it is divided by the
factor."""
LONG, SHORT = "long_factor", "short_factor"
"""LongRoPE: what each pair's frequency is divided by in texts beyond the original context, and in shorter ones."""
_ELSEWHERE = ("rope_theta", "partial_rotary_factor", "type", "rope_type")
"""Keys of the same dictionary that are no scaling."""


class Rotated(Protocol):
    """What is read of a model's configuration here."""

    @property
    def rotated(self) -> int: ...
    @property
    def rope_theta(self) -> float: ...
    @property
    def local_rope_theta(self) -> float: ...
    @property
    def rope_scaling(self) -> dict[str, Any] | None: ...


def read_scaling(rope: dict[str, Any], context: int) -> dict[str, Any] | None:
    """The scaling of a ``config.json``'s ``rope_parameters`` or ``rope_scaling``, completed; None for plain RoPE.

    ``context``: ``max_position_embeddings``. UserError for a kind that is not computed here and for missing numbers.
    """
    kind = rope.get("rope_type", rope.get("type")) or "default"
    if kind == "default":
        return None
    kind = "longrope" if kind == "su" else kind  # its name in the first files
    if not isinstance(kind, str) or kind not in _NEEDED:
        raise UserError(f"rope scaling of type {kind!r} is not supported; plain RoPE, {_known()} are")
    given = {key: value for key, value in rope.items() if key not in _ELSEWHERE and value is not None}
    if kind == "yarn":
        given.setdefault("original_max_position_embeddings", context)
    factors = _factors(given) if kind == "longrope" else {}
    if kind == "longrope":
        old = number(given.get("original_max_position_embeddings", context), "original_max_position_embeddings")
        if old < 2:
            raise UserError(f"rope scaling of type 'longrope' with original_max_position_embeddings={old} is not valid")
        given.setdefault("factor", context / old)
    missing = [key for key in _NEEDED[kind] if key not in given]
    if missing:
        raise UserError(
            f"config.json has a rope scaling of type {kind!r} without {', '.join(missing)}: add "
            f"{'it' if len(missing) == 1 else 'them'} as the model's own page says, or download config.json again"
        )
    numbers = {key: number(given[key], key) for key in _NEEDED[kind]}
    for key, value in numbers.items():
        if value <= 0:
            raise UserError(f"rope scaling of type {kind!r} with {key}={value} in config.json: it must be above 0")
    if kind == "llama3" and numbers["high_freq_factor"] <= numbers["low_freq_factor"]:
        raise UserError(
            f"rope scaling of type 'llama3' with high_freq_factor={numbers['high_freq_factor']} in config.json: it "
            f"must be above low_freq_factor={numbers['low_freq_factor']}"
        )
    for key, value in given.items():
        if key not in numbers and not _has_no_effect(key, value, {"rope_type": kind, **numbers}):
            raise UserError(f"rope scaling of type {kind!r} with {key}={value} is not supported")
    return {"rope_type": kind, **numbers, **factors}


def _factors(given: dict[str, Any]) -> dict[str, list[float]]:
    """LongRoPE's two lists, taken out of what is given."""
    found = {}
    for key in (SHORT, LONG):
        values = given.pop(key, None)
        if not isinstance(values, list) or not values:
            raise UserError(f"rope scaling of type 'longrope' without a list {key} in config.json: download it again")
        found[key] = [number(each, key) for each in values]
        if min(found[key]) <= 0:
            raise UserError(f"rope scaling of type 'longrope' with {min(found[key])} in {key}: all must be above 0")
    return found


def _known() -> str:
    *first, last = _NEEDED
    return f"{', '.join(map(repr, first))} and {last!r}"


def _has_no_effect(key: str, value: Any, scaling: dict[str, Any]) -> bool:
    """Whether a further key says what is computed anyway."""
    kind = scaling["rope_type"]
    usual: dict[str, Any] = {"beta_fast": BETA_FAST, "beta_slow": BETA_SLOW, "truncate": True}
    if kind in ("yarn", "longrope") and key == "attention_factor":
        return math.isclose(number(value, key), attention_factor(scaling), rel_tol=1e-4)
    if kind == "yarn" and key in usual:
        return bool(value == usual[key])
    return kind not in ("yarn", "longrope") or key == "finetuned"


def number(value: Any, key: str) -> float:
    """A number of a configuration, also where it is given as text. UserError for anything else."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = float(value) if not value.strip().lstrip("-").isdigit() else int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UserError(f"{key}={value!r} in config.json is no number: correct it, or download config.json again")
    return value


def switches(scaling: dict[str, Any] | None, past: int, length: int) -> bool:
    """Whether a text that grows from ``past`` to ``length`` positions changes from LongRoPE's short to its long
    factors."""
    if not scaling or scaling["rope_type"] != "longrope":
        return False
    return bool(0 < past <= scaling["original_max_position_embeddings"] < length)


def rope_frequencies(config: Rotated, *, local: bool = False, length: int = 0) -> "Tensor":
    """Radians per position of each pair of values, f32 [rotated / 2]; ``local``: those of local layers. ``length``: of
    the text, by which LongRoPE chooses its factors."""
    import torch

    rotated, theta = config.rotated, config.local_rope_theta if local else config.rope_theta
    exponents = torch.arange(0, rotated, 2, dtype=torch.float32) / rotated
    frequencies = 1.0 / theta**exponents
    scaling = None if local else config.rope_scaling
    if not scaling:
        return frequencies
    factor = scaling["factor"]
    if scaling["rope_type"] == "linear":
        return frequencies / factor
    old_context = scaling["original_max_position_embeddings"]
    if scaling["rope_type"] == "longrope":
        return frequencies / torch.tensor(scaling[LONG if length > old_context else SHORT])
    if scaling["rope_type"] == "yarn":
        kept = _kept_by_yarn(theta, rotated, old_context)
    else:
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        wavelength = 2 * math.pi / frequencies
        kept = ((old_context / wavelength - low) / (high - low)).clamp(0, 1)
    # Long waves are slowed by the factor, short ones kept, those between blended.
    return frequencies * (kept + (1 - kept) / factor)


def _kept_by_yarn(theta: float, rotated: int, old_context: float) -> "Tensor":
    """How much of each pair's own frequency YaRN keeps, f32 [rotated / 2], 0 to 1 (Peng et al. 2023)."""
    import torch

    def pair_that_turns(times: float) -> float:
        return rotated * math.log(old_context / (times * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(pair_that_turns(BETA_FAST)), 0)
    high = min(math.ceil(pair_that_turns(BETA_SLOW)), rotated - 1)
    ramp = (torch.arange(rotated // 2, dtype=torch.float32) - low) / max(high - low, 0.001)
    return 1 - ramp.clamp(0, 1)


def attention_factor(scaling: dict[str, Any] | None) -> float:
    """What cosines and sines are multiplied by: 1 except in YaRN and LongRoPE, where it makes attention over a longer
    context sharper."""
    if not scaling or scaling["rope_type"] not in ("yarn", "longrope") or scaling["factor"] <= 1:
        return 1.0
    if scaling["rope_type"] == "longrope":
        return math.sqrt(1 + math.log(scaling["factor"]) / math.log(scaling["original_max_position_embeddings"]))
    return 0.1 * math.log(scaling["factor"]) + 1.0
