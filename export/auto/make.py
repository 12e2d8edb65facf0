"""The file of a choice: made by llama.cpp's quantizer with a type per matrix, measured and compared, and chosen again
where it decodes more slowly than it should or adds more loss than it may.

Tested in tests/export/auto/test_planner.py, tests/export/auto/test_fast.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from slm.data.errors import UserError
from slm.export.auto.fast import fast_enough
from slm.export.auto.planner import Choice, GoalError, Planner
from slm.export.proof import Comparison
from slm.export.quantize import quantize_file
from slm.export.target import Target
from slm.llama.gguf_check import read_header
from slm.llama.speed.timing import file_rate

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

    A limit on the loss holds on the text of the comparison too: where the file misses it, a stricter choice follows,
    and after three a line says so.
    """
    stricter, compared = 1.0, None
    for _ in range(_TRIES):
        try:
            choice = make_file(planner, base, path, target, log, metadata, stricter=stricter)
        except GoalError:
            if compared is None:
                raise
            break  # nothing is stricter than the last one
        made, compared = choice, compare(path, target.spelled)
        if target.goal not in ("loss", "speed") or compared.kl <= target.value:
            return compared, made
        log(f"{target.spelled}: KL {compared.kl:.3g} nats on the proof's text, over {target.value:.3g}")
        stricter *= _MARGIN * target.value / compared.kl
    assert compared is not None
    log(f"note: {path.name} misses {target.spelled}; the tables have its figures")
    return compared, made


def make_file(
    planner: Planner,
    base: Path,
    path: Path,
    target: Target,
    log: Callable[[str], None],
    metadata: Mapping[str, str | float] | None = None,
    *,
    stricter: float = 1.0,
    refuse: bool = True,
) -> Choice:
    """Choose for the goal and quantize ``base`` into ``path``. A goal that speaks of speed is measured on the file, and
    a decode speed is chosen again by what was measured; a line says where nothing was fast enough.

    ``stricter``: the planner's. ``refuse``: whether a decode speed far from all that this machine can do is a UserError
    rather than that line.
    """
    quantize = partial(quantize_choice, planner, base, path, log=log, metadata=metadata)
    if target.goal != "decode":
        choice = planner.choose(target, stricter)
        quantize(choice)
        return replace(choice, measured_tok_s=_rate(planner, path)) if target.goal == "speed" else choice
    made: list[Choice] = []

    def measure(choice: Choice) -> float:
        quantize(choice)
        made.append(choice)
        return _rate(planner, path)

    found = fast_enough(planner, target, measure, log)
    if found.hopeless and refuse:
        raise UserError(f"quant={target.spelled} cannot be met: {found.shortfall}; ask for less")
    if found.choice.types != made[-1].types:
        quantize(found.choice)
    if found.shortfall:
        log(f"note: {target.spelled} is missed: {found.shortfall}")
    return found.choice


def _rate(planner: Planner, path: Path) -> float:
    return file_rate(path, planner.workload, planner.threads)


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
