"""Filters: each definition, checked by hand."""

import pytest

from slm.data.config import DataConfig, SourceConfig
from slm.data.errors import UserError
from slm.data.sources.documents import iter_documents
from slm.data.sources.filters import make_filter


def reason(text, **options):
    found = make_filter(SourceConfig(kind="tales", **options))
    return found(text)


def test_no_filter_is_none():
    assert make_filter(SourceConfig(kind="tales")) is None


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("abcd", {"min_chars": 4}, None),
        ("abc", {"min_chars": 4}, "min_chars"),
        ("日本", {"min_chars": 3}, "min_chars"),  # characters, not bytes
        ("abcd", {"max_chars": 4}, None),
        ("abcde", {"max_chars": 4}, "max_chars"),
        ("ab 12", {"min_letters": 0.5}, None),
        ("ab 123", {"min_letters": 0.5}, "min_letters"),
        ("a\n \t b", {"min_letters": 1.0}, None),  # white space does not count
        ("123", {"min_letters": 0.01}, "min_letters"),
        ("Straße ñ", {"script": "latin", "min_script": 1.0}, None),
        ("привет hi", {"script": "cyrillic"}, None),
        ("привет hello there", {"script": "cyrillic"}, "script"),
        ("привет hello there", {"script": "cyrillic", "min_script": 0.3}, None),
        ("42 ...", {"script": "latin"}, "script"),  # without letters there is no script
        ("漢字 kana", {"script": "cjk"}, "script"),
        ("漢字漢字 kana", {"script": "cjk"}, None),
        ("a \ud800 b", {"min_letters": 0.6}, None),  # half a surrogate pair is a character like another
        ("x", {"min_chars": 2, "script": "greek"}, "min_chars"),  # the first reason counts
    ],
)
def test_definitions(text, options, expected):
    assert reason(text, **options) == expected


def test_streams_leave_them_out(tmp_path):
    rows = [f"Document number {i} with some words." for i in range(50)] + [
        "short",
        "x" * 500,
        "1 2 3 4 5 6 7 8 9 10 11",
    ]
    (tmp_path / "a.txt").write_text("<|endoftext|>".join(rows))
    config = DataConfig(
        kind="files", files=[str(tmp_path)], min_chars=10, max_chars=400, min_letters=0.5, val_fraction=0.1
    )
    found = [*iter_documents(config, "train", 1), *iter_documents(config, "validation", 1)]
    assert sorted(found) == sorted(rows[:50])


def test_a_small_corpus_holds_out_text_that_passes(tmp_path):
    """The share to hold out is chosen among the documents that are left."""
    rows = ["x" * 20] * 300 + [f"{i} " + "word " * 100 for i in range(40)]
    (tmp_path / "a.txt").write_text("<|endoftext|>".join(f"{i} {row}" for i, row in enumerate(rows)))
    config = DataConfig(kind="files", files=[str(tmp_path)], min_chars=200)
    validation = list(iter_documents(config, "validation", 1))
    assert 1500 < sum(map(len, validation)) < 20_000
    assert len(validation) + len(list(iter_documents(config, "train", 1))) == 40


def test_where_nothing_is_left_the_filters_are_named(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "short"}\n{"text": ""}\n{"text": "shorter"}\n')
    with pytest.raises(UserError, match=r"nothing is left of .*: of 3 records are left out 2 by min_chars, 1 by"):
        list(iter_documents(DataConfig(kind="files", files=[str(path)], min_chars=100), "train", 1))
