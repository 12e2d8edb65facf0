"""The file of a choice: made by llama.cpp's quantizer with a type per matrix, compared, and chosen again where it adds
more loss than it may.

Tested in tests/export/auto/test_planner.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from data.errors import UserError
from export.auto.planner import Choice, Planner
from export.proof import Comparison
from export.quantize import quantize_file
from export.target import Target
from slm.llama.gguf_check import read_header
from slm.llama.speed.trial import file_rate

_TRIES = 3
_MARGIN = 0.95
_SAME_SPEED = 0.97
"""Speeds that differ by less are the same: so much they vary from one measurement to the next."""


def make_chosen(
    planner: Planner,
    base: Path,
    path: Path,
    target: Target,
    compare: Callable[[Path, str], Comparison],
    log: Callable[[str], None],
    metadata: Mapping[str, str | float] | None = None,
) -> tuple[Comparison, Choice]:
    """Quantize ``base`` into ``path`` (a staged file) with the types chosen for the goal, and compare it.
    ``metadata``: further entries of the file.

    A limit on the loss holds on the text of the comparison too, and a decode speed for the finished file: where the
    file misses it, a stricter choice follows, and after three a line says so.
    """
    stricter, compared = 1.0, None
    for _ in range(_TRIES):
        try:
            choice = planner.choose(target, stricter)
        except UserError:
            if compared is None:
                raise
            break  # nothing is stricter than the last one
        quantize_choice(planner, base, path, choice, log, metadata)
        if choice.decode_tok_s is not None:
            choice = replace(choice, measured_tok_s=file_rate(path, planner.threads))
        made, compared = choice, compare(path, target.spelled)
        missed = _missed(target, made, compared)
        if missed is None:
            return compared, made
        log(f"{target.spelled}: {missed.what}")
        stricter *= missed.factor
    assert compared is not None
    log(f"note: {path.name} misses {target.spelled}; the tables have its figures")
    return compared, made


@dataclass(frozen=True, kw_only=True)
class _Missed:
    """A goal that a finished file does not meet."""

    what: str
    factor: float
    """By which the next choice is stricter."""


def _missed(target: Target, choice: Choice, compared: Comparison) -> _Missed | None:
    if target.goal in ("loss", "speed") and compared.kl > target.value:
        what = f"KL {compared.kl:.3g} nats on the proof's text, over {target.value:.3g}"
        return _Missed(what=what, factor=_MARGIN * target.value / compared.kl)
    measured = choice.measured_tok_s
    if target.goal == "decode" and measured is not None and measured < _SAME_SPEED * target.value:
        what = f"decodes {measured:,.0f} tokens/s, not {target.value:,.0f} (predicted {choice.decode_tok_s:,.0f})"
        return _Missed(what=what, factor=target.value / measured)
    return None


def quantize_choice(
    planner: Planner,
    base: Path,
    path: Path,
    choice: Choice,
    log: Callable[[str], None],
    metadata: Mapping[str, str | float] | None = None,
) -> None:
    """Quantize ``base`` into ``path`` with the types of the choice."""
    log(f"quantizing to {choice.target.spelled}: {choice.bits_per_weight:.2f} bits per weight")
    quantize_file(
        base,
        path,
        choice.file_type,
        planner.importance or None,
        planner.threads,
        tensor_types=choice.overrides(),
        metadata=choice.metadata() | dict(metadata or {}),
    )
    stored = {tensor.name: tensor.type for tensor in read_header(path).tensors}
    wrong = [name for name, kind in choice.types.items() if stored[name] != kind]
    assert not wrong, f"llama.cpp stored other types than were chosen: {', '.join(wrong)}"
