"""``report.html``: one run, or several next to each other, as one file that needs nothing else.

``python -m slm.train.report.html 'runs=[runs/a,runs/b]' out=compare.html``
"""

import base64
import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, Template
from markupsafe import Markup

from slm import cli
from slm.configuration import build, load_config
from slm.data.errors import UserError
from slm.data.storage import atomic_write_text
from slm.report import final_json, finite
from slm.train.report import sections
from slm.train.report.chart_data import chart_data
from slm.train.report.comparison import comparison, same_file
from slm.train.report.run_record import RunRecord, find_run
from slm.train.report.samples import SAMPLE_TEMPERATURE

MOST_RUNS = 8
"""As many as there are colours that can be distinguished."""


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """The options of ``make report``; ``configs/report.yaml`` has their defaults."""

    runs: list[str]
    """Run directories; one gives that run's report, several a comparison."""
    out: str | None = None
    """The file to write; default: ``report.html`` in the run, or ``compare.html`` next to the first of several."""

    def __post_init__(self) -> None:
        if not self.runs:
            raise UserError("runs must name at least one run, as in 'runs=[runs/a,runs/b]'")
        if len(self.runs) > MOST_RUNS:
            raise UserError(f"runs names {len(self.runs)} runs: compare at most {MOST_RUNS} at once")


def main(argv: list[str]) -> int:
    """Write the report of the runs that are named. Returns the exit code."""
    config = build(ReportConfig, load_config("report", argv, literal=("runs",)))
    roots = [find_run(path) for path in config.runs]
    if len(set(roots)) < len(roots):
        raise UserError("runs names a run twice: give each once")
    runs = [RunRecord(root) for root in roots]
    for run in runs:
        run.update()
    default = roots[0] / "report.html" if len(roots) == 1 else roots[0].parent / "compare.html"
    out = Path(config.out) if config.out else default
    if out.is_dir():
        raise UserError(f"out={out} is a directory; name a file in it, such as {out / 'report.html'}")
    if not out.parent.is_dir():
        raise UserError(f"out={out}: there is no directory {out.parent}; make it first")
    try:
        write_report(out, runs)
    except OSError as error:
        raise UserError(
            f"{out} cannot be written ({error.strerror or error}): name a file in another directory with out=FILE"
        ) from error
    print(f"written: {out}\nnext: open it in a browser")
    final_json({"out": str(out), "runs": list(map(str, roots))})
    return 0


def write_report(path: Path, runs: Sequence[RunRecord], statuses: Sequence[str] | None = None) -> None:
    """Write the report of ``runs``, which must be up to date, to ``path`` in one step.

    ``statuses``: whether the runs are running, finished and so on, where the caller knows better than the files do.
    """
    atomic_write_text(path, render(runs, statuses or [run.status() for run in runs]))


def render(runs: Sequence[RunRecord], statuses: Sequence[str]) -> str:
    """The page. It escapes everything that comes from a run, and no script but its own may run."""
    template, fixed = _page()
    names = _distinct_names(runs)
    several = len(runs) > 1
    content: dict[str, Any] = {
        **fixed,
        "title": " and ".join(names) if len(runs) < 3 else f"{len(runs)} runs",
        "written_at": round(time.time()),
        "written": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        "runs": [_run_tables(run, name) for run, name in zip(runs, names, strict=True)],
    }
    drawn = [chart_data(*each) for each in zip(runs, names, statuses, strict=True)]
    units = sorted({run.loss_unit for run in runs})
    same_tokenizer = several and same_file(runs, "tokenizer/tokenizer.json")
    running = not several and statuses[0] == "running"
    content["data"] = finite(
        {
            "runs": drawn,
            "x": "tokens" if several else "step",
            "unit": " or ".join(units),
            "comparable": same_tokenizer and len(units) == 1,
            "running": running,
        }
    )
    if several:
        content |= comparison(runs, names, units, same_tokenizer)
    else:
        content["single"] = _single(runs[0], statuses[0])
        content["tables"] = _tables(runs[0])
    strides = [run["stride"] for run in drawn if run["stride"] > 1]
    content["thinning"] = (
        f" The run has too many records for a picture: each point of the curves is the mean of up to {max(strides):,}, "
        "and the shade behind it reaches from the smallest to the largest of them."
        if strides
        else ""
    )
    return template.render(content)


@cache
def _page() -> tuple[Template, dict[str, str]]:
    """The template, and the parts of the page that are the same for every run."""
    folder = resources.files("slm.train.report") / "web"
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


def _run_tables(run: RunRecord, name: str) -> dict[str, Any]:
    n, best = len(run.validations), run.best()
    note = f"{n:,} validation{'s' if n != 1 else ''}"
    if best:
        note += f", the best at step {best.step:,}"
    if n > sections.SHOWN_VALIDATIONS:
        note += f"; {sections.SHOWN_VALIDATIONS} of them here"
    rows = sections.validation_rows(run)
    events = sections.event_rows(run)
    return {"name": name, "unit": run.loss_unit, "validations": rows, "validations_note": note, "events": events}


def _single(run: RunRecord, status: str) -> dict[str, Any]:
    groups = sections.sample_groups(run)
    hidden = sum(not group["shown"] for group in groups)
    return {
        "name": run.name,
        "status": status if status in sections.STATUS else "stopped",
        "status_text": sections.STATUS.get(status, status),
        "subtitle": sections.subtitle(run),
        "progress_mille": round(1000 * run.progress()),
        "progress_text": sections.progress_text(run, status),
        "tiles": sections.tiles(run),
        "warnings": sections.warnings(run, status),
        "samples": groups,
        "samples_hidden": hidden,
        "samples_note": f"Written at a validation from the words in grey, at temperature {SAMPLE_TEMPERATURE}.",
    }


def _tables(run: RunRecord) -> list[dict[str, Any]]:
    options = list(sections.flatten(run.config).items())
    text = sections.text_rows(run)
    return [
        *(
            [
                {
                    "title": "Text",
                    "note": "Of each source: records read, documents taken for training, what is left out and why.",
                    "columns": sections.TEXT_COLUMNS,
                    "rows": text,
                }
            ]
            if text
            else []
        ),
        {
            "title": "Configuration",
            "note": "" if options else "There is no config.yaml.",
            "rows": options,
            "folded": f"{len(options)} options",
        },
        {
            "title": "Machine",
            "note": "Where the run was last started." if run.start() else "This run did not record its machine.",
            "rows": sections.machine_rows(run),
        },
    ]


def _distinct_names(runs: Sequence[RunRecord]) -> list[str]:
    names = [run.name for run in runs]
    return [name if names.count(name) == 1 else str(run.root) for name, run in zip(names, runs, strict=True)]


if __name__ == "__main__":
    cli.run(main)
