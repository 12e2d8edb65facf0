"""Turns of phrase that a reader has to read twice: each has a budget, and the budget only falls."""

import re

import pytest

from tests.helpers import REPOSITORY

FOLDERS = ("configs", "data", "docs", "examples", "export", "serve", "slm", "studio", "tests", "train")
SUFFIXES = (".py", ".md", ".yaml", ".h", ".cpp", ".js", ".html")
LEFT_OUT = ("docs/lab/", "data/tales/", "tests/test_prose.py")
BEGINS = r"(?:^|[.!?]\s+|\"\"\"|# |// )"

TURNS = {
    "in the place of": (r"\bin the place of\b", 0),
    "X of its own": (r"\bof (?:its|their|his|her|one's|your|ours?|my) own\b", 7),
    "so many": (r"\bso many\b", 0),
    "is that of": (r"\b(?:is|are) (?:that|those) of\b", 5),
    "whose": (r"\bwhose\b", 63),
    "Of ...": (BEGINS + r"Of\s", 18),
    "That ...": (BEGINS + r"That\s", 2),
    "is told to": (r"\b(?:is|are|was|were) told to\b", 3),
}
"""Pattern, and how often it may occur. Lower the number when you mend some; never raise it."""
SLACK = 8
"""A turn may fall this far below its budget before the budget has to follow."""


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """The prose, comments and messages of the repository, by path."""
    found = [*REPOSITORY.glob("*.md"), *(path for folder in FOLDERS for path in (REPOSITORY / folder).rglob("*"))]
    kept = {str(path.relative_to(REPOSITORY)): path for path in found if path.suffix in SUFFIXES}
    left_out = [name for name in kept if name.startswith(LEFT_OUT) or "vendor/" in name]
    return {name: path.read_text(errors="replace") for name, path in kept.items() if name not in left_out}


@pytest.mark.parametrize("turn", TURNS)
def test_a_turn_occurs_no_more_often_than_its_budget(texts, turn):
    pattern, budget = TURNS[turn]
    counts = {path: len(re.findall(pattern, text, re.MULTILINE)) for path, text in texts.items()}
    total = sum(counts.values())
    most = sorted(((n, path) for path, n in counts.items() if n), reverse=True)[:8]
    where = ", ".join(f"{path} ({n})" for n, path in most)
    assert total <= budget, f'"{turn}" occurs {total} times, at most {budget} are allowed; write it plainly: {where}'
    assert total >= budget - SLACK, f'"{turn}" occurs {total} times only: lower its budget from {budget}'
