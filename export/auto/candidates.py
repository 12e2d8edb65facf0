"""Which types a matrix may be stored in.

Tested in tests/export/auto/test_planner.py.
"""

from slm.llama.blocks.rounding import NEED_IMPORTANCE, fits
from slm.llama.gguf_check import GGML_TYPES

TYPES = (
    *("q2_k", "iq3_xxs", "q3_k", "iq3_s", "iq4_xs", "q4_k", "q4_0", "iq4_nl", "q4_1"),
    *("q5_k", "q5_0", "q5_1", "q6_k", "q8_0"),
)
"""By rising size. Types of two bits and less are left out: their rounding takes llama.cpp ten times as long as that of
all these together, and without quantization-aware training they cost more than they save."""
_SLOW = ("iq3_xxs", "iq3_s")
_FOR_NARROW = ("q4_1", "q5_0", "q5_1")
"""Worth a look only where rows are no multiples of 256: K-quants of the same size are better."""


def candidates(width: int, *, has_importance: bool) -> list[str]:
    """The types that rows of ``width`` numbers fit, smallest first; f16 where none of them does."""
    wide = fits("q4_k", width)
    found = [
        kind
        for kind in TYPES
        if fits(kind, width) and not (wide and kind in _FOR_NARROW) and (has_importance or kind not in NEED_IMPORTANCE)
    ]
    return found or ["f16"]


def bits(kind: str) -> float:
    """Bits per weight of a type."""
    _, block, size = GGML_TYPES[kind]
    return 8 * size / block


def is_slow(kind: str) -> bool:
    """Whether llama.cpp rounds fewer than a million weights per second to the type."""
    return kind in _SLOW


def reference_types(width: int) -> tuple[str, ...]:
    """The types at which the estimate is compared with a measurement, larger first: between them lie the choices."""
    if fits("q4_k", width):
        return ("q4_k", "q2_k")
    return ("q4_0",) if fits("q4_0", width) else ()
