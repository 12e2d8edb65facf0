"""C4's rules: each of them by a page that breaks it alone, and the lines that are left."""

import json

import pytest

from slm.data.config import DataConfig, SourceConfig
from slm.data.errors import UserError
from slm.data.quality.c4 import clean
from slm.data.sources.documents import iter_documents
from slm.data.sources.filters import LINE, make_change, make_filter

LINES = [
    "The old bridge was closed for repairs last week.",
    "Who will take the children to school now?",
    "The mayor promised that it will open again soon!",
    "\u201cIt cannot be soon enough,\u201d said the baker. \u201cNobody comes to my shop any more.\u201d",
]
PAGE = "\n".join(LINES)


def test_a_good_page_stays_as_it_is():
    text = "\n" + PAGE + "\n\n\n\n" + PAGE
    assert clean(text) == (text, (), None)


@pytest.mark.parametrize(
    "line",
    [
        "Home | News | Contact | About us and more",  # no mark at its end
        "Read the whole story about the bridge...",
        "Read the whole story about the bridge\u2026",
        "Closed for repairs today.",  # four words
        "Please enable JavaScript in your browser to go on.",
        "This site uses cookies so that it works well.",
        "Please read our Privacy Policy before you write here.",
        "A word is far too long: " + "a" * 1001 + ".",
    ],
)
def test_a_line_is_left_out(line):
    found = clean("\n".join([*LINES[:2], line, *LINES[2:]]))
    assert found == (PAGE, (line,), None)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (PAGE + "\nif (x) { return a very nice page. }", "a curly bracket"),
        (PAGE + "\nLorem Ipsum dolor sit amet is what it says.", "lorem ipsum"),
        ("\n".join(LINES[:2]), "fewer than 3 sentences"),
        ("\n".join([*LINES[:2], "A line without its end, and. with. marks. inside"]), "fewer than 3 sentences"),
        ("", "fewer than 3 sentences"),
        ("The price is 3.14 or 2.72 or 1.41 today. Nothing else is known.", "fewer than 3 sentences"),
    ],
)
def test_a_page_is_left_out(text, rule):
    assert rule in clean(text).broken


def test_the_option(tmp_path):
    reason = make_filter(SourceConfig(kind="tales", rules="c4"))
    assert reason(PAGE) is None
    assert reason("{") == "rules (a curly bracket)"
    noted = []
    change = make_change(SourceConfig(kind="tales", rules="gopher+c4"), note=lambda *each: noted.append(each))
    assert change(f"Menu\n{PAGE}") == PAGE
    assert noted == [(LINE, "Menu")]
    assert "50 words" in make_filter(SourceConfig(kind="tales", rules="gopher+c4"))(PAGE[:100])
    assert make_change(SourceConfig(kind="tales", rules="gopher")) is None
    path = tmp_path / "a.jsonl"
    pages = [f"Menu {n}\nPage {n} is a line.\n{' '.join(LINES[:1] * 3)}" for n in range(20)]
    path.write_text("".join(json.dumps({"text": page}) + "\n" for page in pages))
    config = DataConfig(kind="files", files=[str(path)], rules="c4", val_fraction=0.2)
    found = [text for split in ("train", "validation") for text in iter_documents(config, split, 1)]
    assert len(found) == 20
    assert not any("Menu" in text for text in found)


def test_not_for_conversations():
    with pytest.raises(UserError, match="not for conversations"):
        SourceConfig(kind="chat", files=["a.jsonl"], rules="c4")
    assert SourceConfig(kind="chat", files=["a.jsonl"], rules="gopher").rule_sets == {"gopher"}
