import io
import zipfile

import pytest

from slm.data.bad_records import BadRecordError
from slm.data.readers import epub

CONTAINER = '<container xmlns="c"><rootfiles><rootfile full-path="OEBPS/book.opf"/></rootfiles></container>'
PACKAGE = """<?xml version="1.0"?><package xmlns="p"><manifest>
<item id="nav" href="nav.xhtml" media-type="application/xhtml+xml" properties="nav"/>
<item id="two" href="text/two%20b.xhtml" media-type="application/xhtml+xml"/>
<item id="one" href="text/one.xhtml" media-type="application/xhtml+xml"/>
<item id="css" href="style.css" media-type="text/css"/></manifest>
<spine><itemref idref="nav"/><itemref idref="one"/><itemref idref="css"/><itemref idref="two"/></spine></package>"""
BOOK = {
    "mimetype": "application/epub+zip",
    "META-INF/container.xml": CONTAINER,
    "OEBPS/book.opf": PACKAGE,
    "OEBPS/nav.xhtml": "<html><body>Contents</body></html>",
    "OEBPS/text/two b.xhtml": "<html><body><h1>Two</h1><p>The end&mdash;at last.</p></body></html>",
    "OEBPS/text/one.xhtml": "<?xml version='1.0'?><html><head><style>p{}</style></head><body><h1>One</h1><p>Caf&eacute;"
    "<sup><a href='#n'>1</a></sup></p><pre>a\n  b</pre><aside id='n'>1. A note.</aside></body></html>",
}


def made(book):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in book.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def test_chapters_in_reading_order():
    found = epub.text(made(BOOK))
    assert found == "One\n\nCafé1\n\na\n  b\n1. A note.\n\nTwo\n\nThe end—at last."


def test_what_cannot_be_read_says_why():
    locked = '<encryption><x:CipherReference xmlns:x="e" URI="OEBPS/text/one.xhtml"/></encryption>'
    fonts = '<encryption><x:CipherReference xmlns:x="e" URI="OEBPS/font.otf"/></encryption>'
    assert "The end" in epub.text(made(BOOK | {"META-INF/encryption.xml": fonts}))
    outside = PACKAGE.replace("text/one.xhtml", "../../../../etc/passwd")
    for book, reason in (
        (BOOK | {"META-INF/encryption.xml": locked}, "encrypted"),
        ({k: v for k, v in BOOK.items() if "container" not in k}, "damaged"),
        ({k: v for k, v in BOOK.items() if "one" not in k}, "damaged"),
        (BOOK | {"OEBPS/book.opf": "<package>"}, "damaged"),
        (BOOK | {"OEBPS/book.opf": outside}, "damaged"),
    ):
        with pytest.raises(BadRecordError, match=f"EPUB book: {reason}"):
            epub.text(made(book))
    with pytest.raises(BadRecordError, match="damaged"):
        epub.text(b"PK nothing")
