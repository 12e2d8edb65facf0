"""How results are printed and kept: tables and durations for people, JSON for programs."""

import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slm.cli import JSON
from slm.data.errors import without_controls
from slm.data.storage import atomic_write_text


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], caption: str | None = None) -> None:
    """Print ``rows`` under ``columns``: text left, numbers right. Wide enough even where there is no terminal."""
    from rich.console import Console
    from rich.table import Table

    grid = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
    for index, name in enumerate(columns):
        numeric = all(_is_number(row[index]) for row in rows) if rows else False
        grid.add_column(name, justify="right" if numeric else "left", no_wrap=True)
    for row in rows:
        grid.add_row(*("" if cell is None else str(cell) for cell in row))
    # What is in brackets is text here (a list, a path), and no markup.
    console = Console(markup=False, emoji=False)
    if not console.is_terminal:
        console = Console(width=200, markup=False, emoji=False)
    console.print(grid)


def _is_number(cell: Any) -> bool:
    text = "" if cell is None else str(cell).replace("±", " ").replace(",", "").replace("%", "")
    try:
        return all(math.isfinite(float(part)) or True for part in text.split())
    except ValueError:
        return False


def plain(text: str) -> str:
    """Text that can do nothing to a terminal: control characters become a visible sign, line ends stay."""
    return "\n".join(map(without_controls, text.replace("\t", "    ").split("\n")))


def perplexity_text(value: float) -> str:
    """A perplexity for a table: ``12.3456``, and of large ones three figures: ``1,230``, ``4.57e+08``."""
    if not value >= 1_000:
        return f"{value:.4f}" if value < 100 else f"{value:.1f}"
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if rounded < 10_000_000 else f"{rounded:.3g}"


def size(n_bytes: float) -> str:
    """Bytes as people write them: ``12 bytes``, ``3.4 MB``, ``1.2 GB`` (powers of ten)."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if n_bytes >= unit:
            return f"{n_bytes / unit:.1f} {name}"
    return f"{n_bytes:.0f} bytes"


def duration(seconds: float) -> str:
    """Time as people write it: ``12 days 3 h``, ``2:03:04``, ``3:04``."""
    minutes, seconds = divmod(round(max(0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24:,} days {hours % 24} h"
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def final_json(record: Any) -> None:
    """Print ``record`` as one line of strict JSON (NaN and infinities become null): a command's last line.

    A person at a terminal has read it in tables: there it is left out unless the command has the word ``json=true``.
    """
    if os.environ.get(JSON, str(not sys.stdout.isatty())).lower() != "true":
        return
    print(json.dumps(finite(record), ensure_ascii=False, allow_nan=False), flush=True)


def atomic_write_json(path: str | Path, record: Any) -> None:
    """``record`` as indented strict JSON, written as ``atomic_write_text`` does."""
    text = json.dumps(finite(record), ensure_ascii=False, allow_nan=False, indent=2)
    atomic_write_text(path, text + "\n")


def finite(value: Any) -> Any:
    """``value`` with every float that JSON cannot hold replaced by None, recursively."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
