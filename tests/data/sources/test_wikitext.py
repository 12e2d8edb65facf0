"""WikiText's raw test set, from a file and from rows as the Hub gives them."""

import pytest

from slm.data.errors import UserError
from slm.data.sources import wikitext


def test_the_canonical_file(shared_data):
    text = wikitext.load(shared_data / "wikitext" / "wiki.test.raw")
    assert wikitext.is_canonical(text)
    assert wikitext.byte_count(text) == wikitext.BYTES
    assert len(text.split()) == 241_211
    assert "canonical" in wikitext.describe(text)
    assert "ALTERED" in wikitext.describe(text.replace(" \n", "\n"))


def test_rows_give_the_canonical_text_back(shared_data):
    text = wikitext.load(shared_data / "wikitext" / "wiki.test.raw")
    # The Hub keeps a line per row and stores the line " \n" as "".
    rows = ["" if line == " \n" else line for line in text.splitlines(keepends=True)]
    assert "" in rows
    assert wikitext.is_canonical(wikitext.join_rows(rows))


def test_another_text(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("Some  text\r\né".encode())
    text = wikitext.load(path)
    assert text == "Some  text\r\né"  # as it is
    assert wikitext.byte_count(text) == 14
    assert not wikitext.is_canonical(text)
    assert wikitext.describe(text) == "14 bytes of text"


def test_files_that_cannot_be_scored(tmp_path):
    with pytest.raises(UserError, match=r"no text file .*eval\.text="):
        wikitext.load(tmp_path / "none.txt")
    (tmp_path / "empty.txt").write_text(" \n")
    with pytest.raises(UserError, match="is empty"):
        wikitext.load(tmp_path / "empty.txt")
    (tmp_path / "bad.txt").write_bytes(b"a\nb\xff")
    with pytest.raises(UserError, match=r"bad\.txt:2 is not UTF-8 .*offset 3"):
        wikitext.load(tmp_path / "bad.txt")


def test_without_network_a_file_is_asked_for(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"Salesforce/wikitext.*eval\.text="):
        wikitext.load(None)
