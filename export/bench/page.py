"""``quantization/report.html``: the sweep as one page that needs nothing else, with its plots.

Tested in tests/export/bench/test_page.py.
"""

import io
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from slm.data.storage import atomic_write_text
from slm.export.bench.front import AXES, on_front
from slm.report import finite

PAGE = "report.html"
_LABELS = {"size": "file, MiB", "decode": "decoding, tokens/s", "prefill": "prompt, tokens/s"}
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem;
  background: var(--ground); color: var(--ink); }
main { background: var(--sheet); border: 1px solid var(--line); border-radius: 6px; padding: 1rem 1.5rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .7rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child, td:last-child, th:last-child { text-align: left; }
.plot { background: #fff; border-radius: 4px; max-width: 100%; }
.plot svg { max-width: 100%; height: auto; display: block; }
p.quiet, caption { color: var(--quiet); text-align: left; }
"""


def write_page(
    path: Path, title: str, columns: Sequence[str], table: Sequence[Sequence[str]], caption: str, record: dict[str, Any]
) -> None:
    """Write the page of a sweep's ``record`` to ``path`` in one step. ``table``: its rows as they are printed."""
    colors = (resources.files("slm") / "web" / "colors.css").read_text(encoding="utf-8")
    head = "".join(f"<th>{escape(each)}</th>" for each in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in table)
    machine = record["machine"]
    where = f"{machine['cpu']}, {record['threads']} threads, {machine['system']}"
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    content = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{colors}{_STYLE}</style></head><body><main><h1>{escape(title)}</h1>"
        f"<p><strong>{escape(record['recommendation'])}</strong></p>"
        f'<div class="plot">{draw(record["files"])}</div>'
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        f"<p>{escape(caption).replace(chr(10), '<br>')}</p>"
        f'<p class="quiet">{escape(where)}; {escape(versions)}</p></main></body></html>\n'
    )
    atomic_write_text(path, content)


def draw(rows: Sequence[dict[str, Any]]) -> str:
    """Quality against size and speeds as one SVG: a point per file, and a line through those that no other beats."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    shown = [row for row in finite(list(rows)) if row["kl"]]
    axes = [axis for axis, key in AXES.items() if shown and all(row[key] is not None for row in shown)]
    if not axes:
        return ""
    figure, panels = plt.subplots(1, len(axes), figsize=(5.2 * len(axes), 4.4), layout="constrained", squeeze=False)
    for panel, axis in zip(panels[0], axes, strict=True):
        key = AXES[axis]
        front = on_front(shown, axis)
        line = sorted((row[key], row["kl"]) for row, best in zip(shown, front, strict=True) if best)
        panel.plot(*zip(*line, strict=True), color="#9ecae1", linewidth=1.5, zorder=1, label="no other is better")
        for kind, color in (("fixed types", "#2171b5"), ("chosen (auto)", "#d94801")):
            points = [(row[key], row["kl"]) for row in shown if row["type"].startswith("auto") == (color == "#d94801")]
            if points:
                panel.scatter(*zip(*points, strict=True), s=22, color=color, zorder=2, label=kind)
        for row in shown:
            panel.annotate(row["label"], (row[key], row["kl"]), (4, 3), textcoords="offset points", fontsize=7)
        panel.set(xlabel=_LABELS[axis], ylabel="KL divergence from the reference (nats per token)", yscale="log")
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0][0].legend(frameon=False, fontsize=8)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg")
    plt.close(figure)
    svg = buffer.getvalue()
    return svg[svg.index("<svg") :]
