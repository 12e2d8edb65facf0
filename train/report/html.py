"""``report.html``: a run, or several beside each other, as one file that needs nothing else.

``python -m train.report.html 'runs=[runs/a,runs/b]' out=compare.html``
"""

import base64
import hashlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, Template
from markupsafe import Markup

from data.errors import UserError
from slm import cli
from slm.configuration import build, load_config
from slm.files import atomic_write_text
from slm.report import duration, finite
from train.report import sections as parts
from train.report.run_record import RunStory, find_run

MOST_RUNS = 8
"""As many as there are colours that can be told apart."""
OWN_OPTIONS = ("name", "runs_dir", "resume", "facts.")
"""Options that name a run and do not make it what it is."""


@dataclass(kw_only=True)
class ReportConfig:
    """What ``make report`` is told."""

    runs: list[str]
    """Run directories; one gives that run's report, several a comparison."""
    out: str | None = None
    """The file to write; default: ``report.html`` in the run, or ``compare.html`` beside the first of several."""

    def __post_init__(self) -> None:
        if not self.runs:
            raise UserError("runs must name at least one run, as in 'runs=[runs/a,runs/b]'")
        if len(self.runs) > MOST_RUNS:
            raise UserError(f"runs names {len(self.runs)} runs: compare at most {MOST_RUNS} at once")


def main(argv: list[str]) -> int:
    """Write the report of the runs that are named. Returns the exit code."""
    config = build(ReportConfig, load_config("report", argv))
    roots = [find_run(path) for path in config.runs]
    if len(set(roots)) < len(roots):
        raise UserError("runs names a run twice: give each once")
    stories = [RunStory(root) for root in roots]
    for story in stories:
        story.update()
    default = roots[0] / "report.html" if len(roots) == 1 else roots[0].parent / "compare.html"
    out = Path(config.out) if config.out else default
    if out.is_dir():
        raise UserError(f"out={out} is a directory; name a file in it, such as {out / 'report.html'}")
    if not out.parent.is_dir():
        raise UserError(f"out={out}: there is no directory {out.parent}; make it first")
    write_report(out, stories)
    print(f"written: {out}")
    return 0


def write_report(path: Path, stories: Sequence[RunStory], statuses: Sequence[str] | None = None) -> None:
    """Render the report of ``stories``, which are up to date, to ``path`` in one step.

    ``statuses``: what the runs are, where the caller knows better than the files do.
    """
    atomic_write_text(path, render(stories, statuses or [story.status() for story in stories]))


def render(stories: Sequence[RunStory], statuses: Sequence[str]) -> str:
    """The page. Everything that comes from a run is escaped, and no script but the page's own may run."""
    template, fixed = _page()
    names = _distinct_names(stories)
    several = len(stories) > 1
    content = {
        **fixed,
        "title": " and ".join(names) if len(stories) < 3 else f"{len(stories)} runs",
        "written_at": round(time.time()),
        "written": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        "runs": [_run_tables(story, name) for story, name in zip(stories, names, strict=True)],
    }
    drawn = [parts.curves(*each) for each in zip(stories, names, statuses, strict=True)]
    comparable = several and _same_file(stories, "tokenizer/tokenizer.json")
    content["data"] = finite(
        {"runs": drawn, "x": "step", "comparable": comparable, "running": not several and statuses[0] == "running"}
    )
    if several:
        content["data"]["x"] = "tokens"
        content |= _comparison(stories, names, comparable)
    else:
        content["single"] = _single(stories[0], statuses[0])
        content["tables"] = _tables(stories[0])
    strides = [run["stride"] for run in drawn if run["stride"] > 1]
    content["thinning"] = (
        f" The run has too many records for a picture: each point of the curves is the mean of up to {max(strides):,}, "
        "and the shade behind it reaches from the least to the greatest of them."
        if strides
        else ""
    )
    return template.render(content)


@cache
def _page() -> tuple[Template, dict[str, str]]:
    """The template, and what of the page is the same for every run."""
    folder = resources.files("train.report") / "web"
    text, own_style, charts, drawing = (
        (folder / name).read_text(encoding="utf-8")
        for name in ("report.html.j2", "report.css", "charts.js", "report.js")
    )
    colors = (resources.files("slm") / "web" / "colors.css").read_text(encoding="utf-8")
    style, script = f"{colors}\n{own_style}", f"{charts}\n{drawing}"
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    fixed = {"style": Markup(style), "script": Markup(script)}
    return environment.from_string(text), fixed | {"style_hash": _hash(style), "script_hash": _hash(script)}


def _hash(text: str) -> str:
    """The form in which a Content-Security-Policy allows one inline script or style, and no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode()


def _run_tables(story: RunStory, name: str) -> dict[str, Any]:
    n, best = len(story.validations), story.best()
    note = f"{n:,} validation{'s' if n != 1 else ''}"
    if best:
        note += f", the best at step {int(best['step']):,}"
    if n > parts.SHOWN_VALIDATIONS:
        note += f"; {parts.SHOWN_VALIDATIONS} of them here"
    rows = parts.validation_rows(story)
    return {"name": name, "validations": rows, "validations_note": note, "events": parts.event_rows(story)}


def _single(story: RunStory, status: str) -> dict[str, Any]:
    groups = parts.sample_groups(story)
    hidden = sum(not group["shown"] for group in groups)
    temperature = story.setting("train.sample_temperature")
    return {
        "name": story.name,
        "status": status if status in parts.STATUS else "stopped",
        "status_text": parts.STATUS.get(status, status),
        "subtitle": parts.subtitle(story),
        "progress_mille": round(1000 * story.progress()),
        "progress_text": parts.progress_text(story, status),
        "tiles": parts.tiles(story),
        "warnings": parts.warnings(story, status),
        "samples": groups,
        "samples_hidden": hidden,
        "samples_note": f"Written at a validation from the words in grey, at temperature {temperature}."
        if temperature is not None
        else "Written at a validation.",
    }


def _tables(story: RunStory) -> list[dict[str, Any]]:
    options = list(parts.flat(story.config).items())
    return [
        {
            "title": "Configuration",
            "note": "" if options else "There is no config.yaml.",
            "rows": options,
            "folded": f"{len(options)} options",
        },
        {
            "title": "Machine",
            "note": "Where the run was last started." if story.start() else "This run did not write down its machine.",
            "rows": parts.machine_rows(story),
        },
    ]


# Several runs beside each other.


def _comparison(stories: Sequence[RunStory], names: Sequence[str], comparable: bool) -> dict[str, Any]:
    if comparable:
        notes = [("quiet", "The runs share a tokenizer: their losses per token may be compared, too.")]
    else:
        text = (
            "It is not known that the runs share a tokenizer, and a loss per token depends on it, as does the number "
            "of tokens. Bits per byte do not: they are what is compared."
        )
        notes = [("quiet", text)]
    if not _same_file(stories, "validation.txt"):
        text = "The runs are validated on different text: the figures tell of the texts as much as of the models."
        notes.append(("warning", text))
    return {
        "notes": [{"kind": kind, "text": text} for kind, text in notes],
        "final": _final_figures(stories, names, comparable),
        "tables": [_differences(stories, names), _machines(stories, names)],
    }


def _distinct_names(stories: Sequence[RunStory]) -> list[str]:
    names = [story.name for story in stories]
    return [name if names.count(name) == 1 else str(story.root) for name, story in zip(names, stories, strict=True)]


def _same_file(stories: Sequence[RunStory], name: str) -> bool:
    """Whether every run has the file, with the same content."""
    try:
        return len({hashlib.sha256((story.root / name).read_bytes()).digest() for story in stories}) == 1
    except OSError:
        return False


def _final_figures(stories: Sequence[RunStory], names: Sequence[str], comparable: bool) -> dict[str, Any]:
    columns = [
        ("bits per byte", "last validation", min),
        ("best", "bits per byte", min),
        ("validation loss", "nats per token", min if comparable else None),
        ("training loss", "nats per token", None),
        ("steps", "", None),
        ("tokens", "", None),
        ("time", "", None),
        ("tokens/s", "median", max),
        ("parameters", "", None),
    ]
    figures = []
    for story in stories:
        last, best = (story.validations or [{}])[-1], story.best() or {}
        figures.append(
            [
                (bits := last.get("val_bits_per_byte"), parts.number_text(bits)),
                (least := best.get("val_bits_per_byte"), parts.number_text(least)),
                (loss := last.get("val_loss"), parts.number_text(loss)),
                (recent := story.recent("loss"), parts.number_text(recent)),
                (story.step(), f"{story.step():,}"),
                (story.tokens(), f"{story.tokens():,}"),
                (story.elapsed(), duration(story.elapsed())),
                (speed := story.speed(), "–" if speed is None else f"{speed:,.0f}"),
                (n := story.model_facts().get("n_params"), "–" if n is None else f"{n:,}"),
            ]
        )
    rows = []
    for name, row in zip(names, figures, strict=True):
        cells = []
        for index, (value, text) in enumerate(row):
            choose = columns[index][2]
            known = [other[index][0] for other in figures if other[index][0] is not None]
            tells = choose is not None and value is not None and len(set(known)) > 1
            cells.append({"text": text, "best": tells and math.isclose(value, choose(known))})
        rows.append({"name": name, "cells": cells})
    note = "Training loss: mean of the last 20 records."
    return {"columns": [{"name": name, "unit": unit} for name, unit, _ in columns], "rows": rows, "note": note}


def _differences(stories: Sequence[RunStory], names: Sequence[str]) -> dict[str, Any]:
    options = [parts.flat(story.config) for story in stories]
    keys = [key for one in options for key in one]
    rows = []
    for key in dict.fromkeys(keys):
        row = [one.get(key, "–") for one in options]
        if not key.startswith(OWN_OPTIONS) and len(set(row)) > 1:
            rows.append((key, *row))
    same = "The runs have the same configuration." if not rows else "Options that are not the same in all of them."
    return {"title": "What was set differently", "note": same, "columns": names, "rows": rows}


def _machines(stories: Sequence[RunStory], names: Sequence[str]) -> dict[str, Any]:
    machines = [dict(parts.machine_rows(story)) for story in stories]
    keys = dict.fromkeys(key for machine in machines for key in machine)
    rows = [(key, *(machine.get(key, "–") for machine in machines)) for key in keys]
    return {"title": "Machines", "note": "" if rows else "None written down.", "columns": names, "rows": rows}


if __name__ == "__main__":
    cli.run(main)
