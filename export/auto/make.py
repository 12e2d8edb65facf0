"""The file of a choice: made by llama.cpp's quantizer with a type per matrix, compared, and chosen again where it adds
more loss than it may.

Tested in tests/export/auto/test_planner.py.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from export.auto.planner import Choice, Planner
from export.proof import Comparison
from export.quantize import quantize_file
from export.target import Target
from slm.llama.gguf_check import read_header

_TRIES = 3
_MARGIN = 0.95


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

    A limit on the loss holds on the text of the comparison too: where the file adds more, a stricter choice follows,
    and after three a line says so.
    """
    stricter = 1.0
    for attempt in range(_TRIES):
        choice = planner.choose(target, stricter)
        quantize_choice(planner, base, path, choice, log, metadata)
        compared = compare(path, target.spelled)
        if target.goal not in ("loss", "speed") or compared.kl <= target.value:
            return compared, choice
        log(f"{target.spelled}: KL {compared.kl:.3g} nats on the proof's text, over {target.value:.3g}")
        if attempt < _TRIES - 1:
            stricter *= _MARGIN * target.value / compared.kl
    log(f"note: {path.name} adds more than {target.spelled} allows on the proof's text; the table has its figures")
    return compared, choice


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
