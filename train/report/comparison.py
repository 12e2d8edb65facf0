"""The page of several runs: final figures, options that differ, machines."""

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slm.report import duration
from slm.runs import VALIDATION
from slm.train.report.formatting import number_text
from slm.train.report.run_record import RunRecord
from slm.train.report.sections import flatten, machine_rows

OWN_OPTIONS = ("name", "runs_dir", "resume", "facts.")
"""Options that name a run or describe its preset; they are no difference between runs."""


def comparison(
    runs: Sequence[RunRecord], names: Sequence[str], units: Sequence[str], same_tokenizer: bool
) -> dict[str, Any]:
    """What the page of several runs shows besides the curves: notes, final figures, differences, machines. ``units``:
    what the runs' losses are counted in."""
    notes = [_tokenizer_note(runs, names, units)]
    if not same_file(runs, VALIDATION):
        text = "The runs are validated on different text: the figures depend on the texts as much as on the models."
        notes.append(("warning", text))
    return {
        "notes": [{"kind": kind, "text": text} for kind, text in notes],
        "final": _final_figures(runs, names, units, same_tokenizer),
        "tables": [_differences(runs, names), _machines(runs, names)],
    }


def _tokenizer_note(runs: Sequence[RunRecord], names: Sequence[str], units: Sequence[str]) -> tuple[str, str]:
    """The kind and text of the note about what the runs' tokenizers allow to compare."""
    groups: dict[str, list[str]] = {}
    for run, name in zip(runs, names, strict=True):
        groups.setdefault(_digest(run.root / "tokenizer" / "tokenizer.json"), []).append(name)
    unknown = groups.pop("", [])
    if len(units) > 1:
        return "warning", "Losses of pairs of answers and of text are different figures. Compare bits per byte."
    if not unknown and len(groups) == 1:
        return "quiet", "The runs have the same tokenizer: their losses per token may be compared, too."
    meaning = "Losses per token and tokens per second cannot be compared between tokenizers. Compare bits per byte."
    if unknown:
        return "warning", f"The tokenizer of {_list(unknown)} is not known. {meaning}"
    listed = "; ".join(_list(group) for group in groups.values())
    return "warning", f"The runs have {len(groups)} different tokenizers ({listed}). {meaning}"


def _list(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _digest(path: Path) -> str:
    """The SHA-256 of a file, empty where it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def same_file(runs: Sequence[RunRecord], name: str) -> bool:
    """Whether every run has the file, with the same content."""
    digests = {_digest(run.root / name) for run in runs}
    return len(digests) == 1 and "" not in digests


@dataclass(frozen=True)
class Column:
    """A column of the table of final figures."""

    name: str
    unit: str
    best: Callable[[Iterable[float]], float] | None
    """Which of several values is the best one, where one is."""


def _columns(units: Sequence[str], same_tokenizer: bool) -> tuple[Column, ...]:
    unit, comparable = " or ".join(units), same_tokenizer and len(units) == 1
    return (
        Column("bits per byte", "last validation", min),
        Column("best", "bits per byte", min),
        Column("validation loss", unit, min if comparable else None),
        Column("training loss", unit, None),
        Column("steps", "", None),
        Column("tokens", "", None),
        Column("time", "", None),
        Column("tokens/s", "median", max if same_tokenizer else None),
        Column("parameters", "", None),
    )


def _figures(run: RunRecord) -> list[tuple[float | None, str]]:
    """A run's value and text for each of the columns."""
    last, best = (run.validations[-1] if run.validations else None), run.best()
    speed, n_params = run.speed(), run.model_facts().get("n_params")
    bits, loss = (last.bits_per_byte, last.loss) if last else (None, None)
    losses = (bits, best.bits_per_byte if best else None, loss, run.recent("loss"))
    return [
        *((value, number_text(value)) for value in losses),
        (run.step(), f"{run.step():,}"),
        (run.tokens(), f"{run.tokens():,}"),
        (run.elapsed(), duration(run.elapsed())),
        (speed, "–" if speed is None else f"{speed:,.0f}"),
        (n_params, "–" if n_params is None else f"{n_params:,}"),
    ]


def _final_figures(
    runs: Sequence[RunRecord], names: Sequence[str], units: Sequence[str], same_tokenizer: bool
) -> dict[str, Any]:
    columns, figures = _columns(units, same_tokenizer), [_figures(run) for run in runs]
    best: list[float | None] = []
    for index, column in enumerate(columns):
        known = [value for row in figures if (value := row[index][0]) is not None]
        best.append(column.best(known) if column.best and len(set(known)) > 1 else None)
    rows = []
    for name, row in zip(names, figures, strict=True):
        cells = [
            {"text": text, "best": None not in (value, target) and math.isclose(value or 0, target or 0)}
            for (value, text), target in zip(row, best, strict=True)
        ]
        rows.append({"name": name, "cells": cells})
    note = "Training loss: mean of the last 20 records, or of all where there are fewer."
    return {"columns": [{"name": each.name, "unit": each.unit} for each in columns], "rows": rows, "note": note}


def _differences(runs: Sequence[RunRecord], names: Sequence[str]) -> dict[str, Any]:
    options = [flatten(run.config) for run in runs]
    keys = [key for one in options for key in one]
    rows = []
    for key in dict.fromkeys(keys):
        row = [one.get(key, "–") for one in options]
        if not key.startswith(OWN_OPTIONS) and len(set(row)) > 1:
            rows.append((key, *row))
    note = "" if rows else "The runs have the same configuration."
    return {"title": "Options that differ", "note": note, "columns": names, "rows": rows}


def _machines(runs: Sequence[RunRecord], names: Sequence[str]) -> dict[str, Any]:
    machines = [dict(machine_rows(run)) for run in runs]
    keys = dict.fromkeys(key for machine in machines for key in machine)
    rows = [(key, *(machine.get(key, "–") for machine in machines)) for key in keys]
    return {"title": "Machines", "note": "" if rows else "None recorded.", "columns": names, "rows": rows}
