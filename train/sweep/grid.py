"""The grid of a sweep, read from the command line: Hydra's syntax for several values of an option."""

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import product

from slm.data.errors import UserError

SEED = "train.seed"
"""Runs that differ in it only are one setting: mean and spread."""
MOST_RUNS = 500
LONGEST_LABEL = 180
"""Characters; a file system takes 255, and the names of logs and of renamed runs are longer. What is longer is cut, and
a hash of the values follows."""
NEVER_SWEPT = ("name", "runs_dir", "resume", "logger", "nproc", "nnodes", "main")
"""What names a run or starts it is no choice between settings."""

Values = tuple[tuple[str, str], ...]
"""Options and their values as typed, in the order of the command line."""


@dataclass(frozen=True)
class Point:
    """One run of the grid."""

    label: str
    """The name of the run and of its directory."""
    values: Values

    @property
    def words(self) -> list[str]:
        return [f"{key}={value}" for key, value in self.values]

    @property
    def setting(self) -> Values:
        """Its values without the seed."""
        return tuple(each for each in self.values if each[0] != SEED)


@dataclass(frozen=True)
class Grid:
    """What all runs share, and what differs between them."""

    fixed: tuple[str, ...]
    """``key=value`` words of every run."""
    axes: tuple[tuple[str, tuple[str, ...]], ...]
    """Each swept option with its values."""

    def points(self) -> list[Point]:
        """Every combination; the last axis changes fastest."""
        keys = [key for key, _ in self.axes]
        names = short_names(keys)
        found = []
        for values in product(*(values for _, values in self.axes)):
            pairs = tuple(zip(keys, values, strict=True))
            found.append(Point(label(names, pairs) or "run", pairs))
        labels = Counter(point.label for point in found)
        # Values that differ in signs only. A number would be another one when values are added.
        return [
            Point(f"{point.label}-{_digest(point.values)}", point.values) if labels[point.label] > 1 else point
            for point in found
        ]


def read_grid(words: Sequence[str], lists: Collection[str]) -> Grid:
    """The grid that ``key=a,b`` words span. ``lists``: options that are lists, for which ``a,b`` is one value.

    UserError for a value that no run could have, and for a grid that is too large.
    """
    fixed: list[str] = []
    axes: list[tuple[str, tuple[str, ...]]] = []
    for word in words:
        values = swept_values(word, lists)
        key = word.partition("=")[0]
        if values is None:
            fixed.append(word)
            continue
        if key in NEVER_SWEPT or key.startswith("sweep."):
            raise UserError(f"{key} can have one value only in a sweep, not {len(values)}: {word}")
        if key in [name for name, _ in axes]:
            raise UserError(f"{key} is given twice: give all its values at once, as in {key}=a,b,c")
        if len(set(values)) < len(values):
            raise UserError(f"{word} has a value twice: give each once")
        axes.append((key, values))
    fixed = [word for word in fixed if word.partition("=")[0] not in [key for key, _ in axes]]
    size = 1
    for _, values in axes:
        size *= len(values)
    if size > MOST_RUNS:
        raise UserError(f"the grid has {size:,} runs, and {MOST_RUNS} are the most: sweep fewer options or values")
    return Grid(tuple(fixed), tuple(axes))


def swept_values(word: str, lists: Collection[str]) -> tuple[str, ...] | None:
    """The values of ``key=a,b``, ``key=range(1,5)``, ``key=choice(a,b)`` or ``key=[a],[b]``; None for one value."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    key, sign, value = word.partition("=")
    if not sign or (key in lists and not value.startswith("[")):
        return None
    if value.startswith(("glob(", "interval(")):
        raise UserError(f"{word}: a sweep takes values (0.01,0.02), range(...) or choice(...)")
    if value.strip().endswith(",") or value.strip().startswith(","):
        raise UserError(f"{word}: a value is missing next to a comma, as in {key}=0.01,0.02")
    try:
        override = OverridesParser.create().parse_override(word)
    except HydraException:
        return None  # the configuration says what is wrong with it
    if not override.is_sweep_override():
        return None
    return tuple(str(each) for each in override.sweep_string_iterator())


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """The last part of each option's name, or all of it where that is another's, too."""
    last = [key.rpartition(".")[2] for key in keys]
    return {key: name if last.count(name) == 1 else key for key, name in zip(keys, last, strict=True)}


def label(names: dict[str, str], values: Values) -> str:
    """``lr_0.01-d_model_256``: a name that a directory and a command line can have, cut where it is long."""
    parts = (f"{names[key]}_{re.sub(r'[^A-Za-z0-9.+-]+', '_', value).strip('_')}" for key, value in values)
    whole = "-".join(parts)
    return whole if len(whole) <= LONGEST_LABEL else f"{whole[:LONGEST_LABEL]}-{_digest(values)}"


def _digest(values: Values) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()[:8]


def describe(values: Values) -> str:
    """``optim.lr=0.01 model.d_model=256``."""
    return " ".join(f"{key}={value}" for key, value in values) or "the options as they are"
