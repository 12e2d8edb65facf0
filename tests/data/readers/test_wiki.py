import io
from xml.sax.saxutils import escape

import pytest

from slm.data.bad_records import BadRecordError
from slm.data.readers import wiki
from slm.data.readers.reader import Reading

HEAD = '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11">\n<siteinfo/>\n'


def page(title, text, ns=0, extra=""):
    return (
        f"  <page>\n    <title>{escape(title)}</title>\n    <ns>{ns}</ns>\n    {extra}<revision><id>1</id>"
        f'<model>wikitext</model><text xml:space="preserve">{escape(text)}</text></revision>\n  </page>\n'
    )


PAGES = [
    page("Ä & Co", "'''Ä''' is a [[letter|character]].<ref>cite</ref>"),
    page("Redirect", "#REDIRECT [[Ä]]", extra='<redirect title="Ä" />'),
    page("Talk:Ä", "hello", ns=1),
    page("Marks", "<page> and </page> in a text"),
    page("Long", "word " * 3000),
]
DUMP = (HEAD + "".join(PAGES) + "</mediawiki>\n").encode()


def read(data, start=0):
    found = wiki.READER.read(io.BytesIO(data), "d.xml", start, Reading())
    return [(wiki.READER.parse(raw, end, Reading()), end) for raw, end in found]


@pytest.mark.parametrize("chunk", [100, 1 << 20])
def test_articles_from_any_position(monkeypatch, chunk):
    monkeypatch.setattr(wiki, "CHUNK", max(chunk, len(HEAD)))
    whole = read(DUMP)
    texts = [text for text, _ in whole]
    assert texts[:3] == ["Ä & Co\n\nÄ is a character.", "", ""]
    assert "in a text" in texts[3]
    assert texts[4].split() == ["Long", *["word"] * 3000]
    for number in range(len(whole) + 1):
        start = whole[number - 1][1] if number else 0
        assert read(DUMP, start) == whole[number:]


def test_markup():
    text = """{{Infobox|name={{x}}}}
== History ==
* one [http://x.example label]
* two &amp; ''three''
{| class="wikitable"
! a !! b
|-
| 1 || style="x" | 2
|}
[[File:X.jpg|thumb|A [[caption]]]] [[qux]]s <!-- comment -->
[[Category:Foo]] [[de:Foo]] __NOTOC__
<nowiki>[[raw]]</nowiki> Born ({{date}})."""
    assert wiki.plain(text) == ("History\n\n• one label\n• two & three\n\na\tb\n1\t2\n\n quxs\n\n[[raw]] Born.")


def test_what_cannot_be_read_says_why():
    with pytest.raises(BadRecordError, match="no dump of MediaWiki"):
        read(b"<?xml version='1.0'?><project><page>x</page></project>")
    with pytest.raises(BadRecordError, match="ends too early"):
        read(DUMP[:-30])
    with pytest.raises(BadRecordError, match="no XML"):
        read(DUMP.replace(b"<ns>0</ns>", b"<ns>", 1))
