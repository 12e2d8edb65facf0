"""How results are printed and kept: tables and durations for people, JSON for programs."""

import json
import math
import os
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from slm.cli import JSON
from slm.data.errors import without_controls
from slm.data.storage import atomic_write_text


def table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    caption: str | None = None,
    *,
    key: int = 1,
    chosen: Collection[int] = (),
) -> None:
    """Print ``rows`` under ``columns``: text left, numbers right.

    Where the terminal is too narrow for all columns, they are printed in parts, one under the other; the first ``key``
    columns, which say what a row is about, are in each. The rows with the indices ``chosen`` are marked with ``>``.
    """
    width = screen_width()
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    right = [bool(rows) and all(_is_number(row[index]) for row in cells) for index in range(len(columns))]
    natural = [max(_wide(name), *(_wide(row[i]) for row in cells), 0) for i, name in enumerate(columns)]
    mark = 2 if chosen else 0
    print("\n" + "\n".join(textwrap.wrap(title, width, break_on_hyphens=False)))
    for part in _parts(natural, right, key, width - mark):
        widths = _fitted([natural[i] for i in part], [right[i] for i in part], width - mark)
        print()
        for number, row in enumerate([list(columns), None, *cells]):
            if row is None:
                print(" " * mark + "  ".join("-" * each for each in widths))
                continue
            lines = [_folded(row[i], each) for i, each in zip(part, widths, strict=True)]
            for depth in range(max(map(len, lines))):
                texts = [each[depth] if depth < len(each) else "" for each in lines]
                padded = [_pad(*each) for each in zip(texts, widths, (right[i] for i in part), strict=True)]
                sign = ("> " if number - 2 in chosen and not depth else "  ") if mark else ""
                print((sign + "  ".join(padded)).rstrip())
    if caption:
        print()
        for line in caption.splitlines():
            print("\n".join(textwrap.wrap(line, width, break_on_hyphens=False)))
    print(flush=True)


def screen_width() -> int:
    """Columns of the terminal, at most 160; 80 where output is no terminal, unless ``COLUMNS`` says otherwise."""
    return max(40, min(shutil.get_terminal_size((80, 24)).columns, 160))


_TEXT = 28
"""Columns that a long text gets at least, when others stand next to it; it is folded."""


def _parts(natural: list[int], right: list[bool], key: int, width: int) -> list[list[int]]:
    """The columns of each part: the first ``key``, and as many others as fit."""
    least = [each if right[i] else min(each, _TEXT) for i, each in enumerate(natural)]
    always = list(range(min(key, len(natural))))
    parts = [always[:]]
    for i in range(len(always), len(natural)):
        if sum(least[each] + 2 for each in [*parts[-1], i]) - 2 > width and len(parts[-1]) > len(always):
            parts.append(always[:])
        parts[-1].append(i)
    return parts


def _fitted(natural: list[int], right: list[bool], width: int) -> list[int]:
    """The columns' widths: their own, or the longest texts folded so that all fit."""
    widths = list(natural)
    while sum(widths) + 2 * (len(widths) - 1) > width:
        texts = [i for i in range(len(widths)) if not right[i] and widths[i] > 8]
        if not texts:
            break
        widths[max(texts, key=lambda i: widths[i])] -= 1
    return widths


def _folded(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False) if _wide(text) > width else [text]


def _wide(text: str) -> int:
    """Columns that the text takes: signs of East Asian scripts take two."""
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


def _pad(text: str, width: int, right: bool) -> str:
    blanks = " " * max(0, width - _wide(text))
    return blanks + text if right else text + blanks


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


def change_text(change: float, stderr: float | None = None) -> str:
    """A relative change of perplexity: ``+1.23% ± 0.20%``.

    Where it is less than two standard errors, the text may have made it, and only that bound is given:
    ``within ±0.40%``. Older records have no error: ``+1.23%``.
    """
    if stderr is None or not math.isfinite(stderr):
        return f"{change:+.2%}"
    return f"within ±{2 * stderr:.2%}" if abs(change) <= 2 * stderr else f"{change:+.2%} ± {stderr:.2%}"


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
    try:
        text.encode()
    except UnicodeEncodeError:  # a file's name that is not UTF-8, as Python spells it
        text = json.dumps(finite(record), allow_nan=False, indent=2)
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
