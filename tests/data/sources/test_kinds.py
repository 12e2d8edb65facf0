"""Kinds of files by name and first bytes, and encodings that are not UTF-8."""

import gzip
import subprocess
import zipfile

import pytest

from slm.data.readers.encodings import advice, guess, not_text
from slm.data.sources.kinds import KINDS, READERS, file_format, suffix, tell

ENGLISH = "He said “that it’s fine” — the quick brown fox jumps over the lazy dog, and then some.\n" * 20
RUSSIAN = "Широкая электрификация южных губерний даст мощный толчок подъёму сельского хозяйства.\n" * 20
CHINESE = "我能吞下玻璃而不伤身体。你好，世界\n" * 50
JAPANESE = "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。\n" * 20
GERMAN = "Alle Menschen sind frei und gleich an Würde und Rechten geboren. Größe, Maß und Übel.\n" * 20
FRENCH = "Tous les êtres humains naissent libres et égaux en dignité. C’est là, déjà, ça et où.\n" * 20
POLISH = "Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych praw.\n" * 20


@pytest.mark.parametrize("text", [ENGLISH, RUSSIAN, CHINESE, POLISH])
@pytest.mark.parametrize("name", ["UTF-16LE", "UTF-16BE", "UTF-32LE", "UTF-32BE"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_wide_encodings_are_named(text, name, mark):
    content = (mark + text).encode(name)
    assert not_text(content[:4096]) == name
    assert not_text(content[:1026]) == name
    assert not not_text(text.encode())


@pytest.mark.parametrize(("text", "name"), [(JAPANESE, "ISO-2022-JP"), ("모든 사람은 자유롭다.\n" * 20, "ISO-2022-KR")])
def test_letters_of_seven_bits_are_named(text, name):
    assert not_text(text.encode(name)) == name
    assert not not_text(b"\x1b(B\x1b[31mred\x1b[m of a terminal\n" * 20)


def test_a_hole_of_nuls_is_no_encoding():
    assert not not_text(ENGLISH.encode()[:1000] + b"\0" * 500 + ENGLISH.encode())
    assert not not_text(b"one\0two\n" + ENGLISH.encode())
    assert not not_text(b"")
    assert not_text(bytes(range(256)) * 16) == "bytes that are no text"
    assert not_text(b"\0" * 4096) == "bytes that are no text"  # blocks that were never written


@pytest.mark.parametrize(
    ("text", "name"),
    [
        *((ENGLISH, "CP1252"), (POLISH, "CP1250"), (POLISH, "ISO8859-2"), (RUSSIAN, "CP1251"), (RUSSIAN, "KOI8-R")),
        *((RUSSIAN, "CP866"), (GERMAN, "CP850"), (GERMAN, "MACINTOSH"), (FRENCH, "MACINTOSH")),
        *((JAPANESE, "EUC-JP"), (JAPANESE, "SHIFT_JIS")),
    ],
)
def test_advice_gives_the_right_letters(text, name):
    content = text.replace("ё", "е").encode(name)
    converted = subprocess.run(["iconv", "-f", guess(content), "-t", "UTF-8"], input=content, capture_output=True)
    assert converted.stdout.decode() == text.replace("ё", "е")
    assert f"iconv -f {guess(content)} -t UTF-8" in advice(content)
    assert "damaged" in advice(text.encode() * 2 + b"\xff")


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("a.txt", b"words", "text"),
        ("a.rst.gz", gzip.compress(b"words", mtime=0), "text"),
        ("a.tex", b"words", "text"),
        ("A.LOG", b"words", "text"),
        ("main.rs", b"fn main() {}", "code"),
        ("LICENSE", b"Permission is granted", "text"),
        ("program", bytes(range(256)) * 16, None),
        ("a.xyz", b"words", None),
        ("Inbox", b"From - Mon Jan 01 10:00:00 2024\nX-Mozilla-Status: 0001\nX-A: b\n c\nSubject: x\n\nHi", "mail"),
        ("letter", b"From here we went on,\nand then home.\nDate: none", "text"),
        ("page", b"<!-- x -->\n<!DOCTYPE HTML>\n<p>", "html"),
        ("page.html", b"<p>", "html"),
        ("saved.txt", b"<html><body><p>", "html"),
        ("a.md", b"<html><body><p>", "text"),
        ("a.txt", b"%PDF-1.7 ...", "pdf"),
        ("a.txt", b"\x1f\x8b\x08 twice", "gzip"),
        ("a.json", b'{"text": "a"}\n', "jsonl"),
        ("a.json", b'\xef\xbb\xbf [{"text": "a"}]', "json"),
        ("a.jsonl", b'{\n  "text": "a"\n}\n{\n', "json"),
        ("a.csv", b"text\nwords", "csv"),
        ("a.parquet", b"PAR1", "parquet"),
        ("missing.txt", None, "text"),
    ],
)
def test_a_files_kind(tmp_path, name, content, kind):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert file_format(str(tmp_path / name)) == kind
    assert kind is None or kind == "gzip" or kind in KINDS


@pytest.mark.parametrize(
    ("entry", "content", "kind"),
    [
        ("[Content_Types].xml", "x", "docx"),
        ("mimetype", "application/epub+zip", "epub"),
        ("mimetype", "application/vnd.oasis.opendocument.text", "odt"),
        ("notes.txt", "x", "zip"),
    ],
)
def test_what_is_a_zip_archive_inside(tmp_path, entry, content, kind):
    with zipfile.ZipFile(tmp_path / "document", "w") as archive:
        archive.writestr(entry, content)
    assert file_format(str(tmp_path / "document")) == kind


def test_messages_of_a_maildir_are_mail(tmp_path):
    """Their names end in the machine's name and flags."""
    for name in ("cur/1700000001.M1P1.host:2,S", "new/1700000002.V802I1M5.mail.example.org"):
        path = tmp_path / name
        path.parent.mkdir()
        path.write_text("From: a@example.org\nSubject: Hello\n\nHow are you?\n")
        assert (file_format(str(path)), suffix(str(path))) == ("mail", "")
    assert file_format(str(tmp_path / "1700000001.M1P1.host:2,S")) is None


def test_a_file_that_changes_is_told_again(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("words")
    assert tell(str(path)) == ("text", "")
    path.write_bytes(ENGLISH.encode("utf-16"))
    assert tell(str(path)) == ("text", "UTF-16LE")


def test_every_reader_has_a_kind():
    assert set(READERS) <= set(KINDS)
    endings = [ending for kind in KINDS.values() for ending in kind.suffixes]
    assert len(endings) == len(set(endings))
    assert all(ending == ending.lower() == suffix(f"a{ending}") for ending in endings)
