"""The tables of the lab's pages lie beside them as CSV files, for whoever plots them: ``docs/lab/figures/PAGE-NN.csv``.

After a change of a table: ``python -m tests.test_lab_figures`` writes the files again.
"""

import csv
import io
import re
from pathlib import Path

import pytest

LAB = Path(__file__).parents[1] / "docs/lab"
PAGES = ("decisions", "recipe-choices")
_ROW = re.compile(r"^\|(.*)\|$")
_RULE = re.compile(r"^\|[-|: ]+\|$")


def tables(text: str) -> list[list[list[str]]]:
    """The Markdown tables of a page: rows of cells without marks of emphasis, the names of the columns first."""
    found: list[list[list[str]]] = []
    inside = False
    for line in text.splitlines():
        row = _ROW.match(line)
        if row and not _RULE.match(line):
            if not inside:
                found.append([])
            cells = re.split(r"(?<!\\)\|", row.group(1))
            found[-1].append([each.strip().replace("**", "").replace("`", "").replace(r"\|", "|") for each in cells])
        inside = row is not None
    return found


def files(page: str) -> dict[str, str]:
    """The CSV files of a page, by name."""
    found = {}
    for number, rows in enumerate(tables((LAB / f"{page}.md").read_text(encoding="utf-8")), 1):
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows(rows)
        found[f"{page}-{number:02}.csv"] = out.getvalue()
    return found


@pytest.mark.parametrize("page", PAGES)
def test_the_files_hold_what_the_page_shows(page):
    there = {each.name: each.read_text(encoding="utf-8") for each in (LAB / "figures").glob(f"{page}-*.csv")}
    assert there == files(page), "python -m tests.test_lab_figures writes them again"


@pytest.mark.parametrize("page", PAGES)
def test_each_row_has_all_columns(page):
    found = tables((LAB / f"{page}.md").read_text(encoding="utf-8"))
    assert found
    for rows in found:
        assert {len(row) for row in rows} == {len(rows[0])}


def write() -> None:
    folder = LAB / "figures"
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.csv"):
        old.unlink()
    for page in PAGES:
        for name, text in files(page).items():
            (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
