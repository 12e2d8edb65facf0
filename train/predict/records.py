"""Records of finished runs, to which the loss law is fitted: ``records.csv`` next to this module, and a person's own.

Each line is one run that ended with its learning rate at about zero. ``docs/results/plan.md`` says how they were made.

Tested in tests/train/predict/test_law.py.
"""

import csv
import io
import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from slm.data.errors import UserError
from slm.data.storage import atomic_write_text, cache_home
from slm.train.predict.ngram import Level

SHIPPED = Path(__file__).with_name("records.csv")


@dataclass(frozen=True, kw_only=True)
class Record:
    """One finished run."""

    name: str
    """Short description of the run."""
    text: str
    """Name of the corpus."""
    n_matrix: int
    """Parameters of the layers' matrices."""
    vocab_size: int
    tokens: int
    """Training tokens."""
    bytes: float
    """Bytes of text of these tokens."""
    unique_bytes: float = math.inf
    """Bytes of distinct text in the corpus."""
    tokens_per_step: int
    bits_per_byte: float
    """Bits per byte of held-out text, in windows of the run's sequence length."""
    remembering: float = 1.0
    forgetting: float = 1.0
    """The text's ``level``; 1 for the English books."""
    source: str = ""
    """Machine and day."""

    @property
    def level(self) -> Level:
        """How predictable the text is."""
        return Level(self.remembering, self.forgetting)


def own_file() -> Path:
    """Where ``plan.add`` keeps a person's records."""
    return cache_home() / "loss_records.csv"


def read(path: Path) -> list[Record]:
    """The records of a file. UserError where it cannot be read."""
    try:
        rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
        return [Record(**{f.name: _value(f.type, row[f.name]) for f in fields(Record)}) for row in map(_current, rows)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} holds no records of runs ({error}): remove it, or copy its columns from {SHIPPED}"
        ) from error


def _current(row: dict[str, str]) -> dict[str, str]:
    """A row as it is written now. Earlier versions knew one figure of a text, which says less of other text than books:
    it counts as both."""
    if "difficulty" in row and "remembering" not in row:
        return row | {"remembering": row["difficulty"], "forgetting": row["difficulty"]}
    return row


def _value(kind: Any, text: str) -> Any:
    return {int: int, float: float, str: str}[kind](text)


def load() -> list[Record]:
    """The shipped records."""
    return read(SHIPPED)


def load_own() -> list[Record]:
    """The records that a person has added on this machine; none without a file."""
    return read(own_file()) if own_file().is_file() else []


def write(path: Path, records: list[Record]) -> None:
    """Write ``records`` as CSV."""
    out = io.StringIO()
    names = [f.name for f in fields(Record)]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    for record in records:
        writer.writerow([f"{value:.10g}" if isinstance(value := getattr(record, n), float) else value for n in names])
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_text(path, out.getvalue())
