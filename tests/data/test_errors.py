"""Hints for misspelt names."""

import re
from pathlib import Path

import pytest

from slm.data.errors import UnreachableError, UserError, excerpt, nearest, one_line


@pytest.mark.parametrize(
    ("name", "options", "hint"),
    [
        ("q4km", ["q4_k_m", "f16"], "did you mean 'q4_k_m'?"),
        ("TRAIN", ["train", "validation"], "did you mean 'train'?"),
        ("lr", ["LR"], "did you mean 'LR'?"),
        ("zzz", ["train"], ""),
        ("train", [], ""),
        (12, [1, 125], "did you mean '125' or '1'?"),
    ],
)
def test_nearest(name, options, hint):
    assert nearest(name, options) == hint


def test_no_more_than_n_are_named():
    assert nearest("aab", ["aaa", "aac", "aad", "aae"], n=2).count(" or ") == 1


def test_an_error_on_one_line():
    assert one_line(ValueError("first\n  second\tthird")) == "first second third"
    assert one_line("x" * 300) == "x" * 300
    assert one_line("abc", 2) == "ab"
    assert excerpt("x\n" * 300) == "x " * 100


def test_there_is_one_way_to_one_line():
    """It was written out in a dozen places."""
    root = Path(__file__).resolve().parents[2]
    sources = (path for room in ("data", "slm", "train", "export", "serve") for path in (root / room).rglob("*.py"))
    spelled = [path.name for path in sources if re.search(r"join\(str\(\w+\)\.split\(\)\)", path.read_text())]
    assert spelled == ["errors.py"]


def test_both_are_errors_of_the_user():
    assert issubclass(UnreachableError, UserError)
    assert issubclass(UserError, ValueError)
