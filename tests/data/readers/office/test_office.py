"""Of slm.data.readers.office: Word, OpenDocument and RTF documents."""

import io
import zipfile

import docx
import pytest

from slm.data.bad_records import BadRecordError
from slm.data.readers import bounds
from slm.data.readers.office import docx as word
from slm.data.readers.office import odt, rtf

W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
BOMB = '<?xml version="1.0"?><!DOCTYPE a [<!ENTITY a "aaaaaaaaaa">' + "".join(
    f'<!ENTITY {name} "{f"&{before};" * 10}">' for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


def packed(**parts):
    """A ZIP file of parts, with ``_`` for ``/`` and ``__`` for a dot in their names."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name.replace("__", ".").replace("_", "/"), content)
    return buffer.getvalue()


def written(document):
    buffer = io.BytesIO()
    document.save(buffer)
    return buffer.getvalue()


def test_word_document_by_python_docx():
    document = docx.Document()
    document.add_heading("A heading", 1)
    paragraph = document.add_paragraph("Plain, ")
    paragraph.add_run("bold").bold = True
    paragraph.add_run(" and a\ttab.")
    hidden = paragraph.add_run("invisible")
    hidden.font.hidden = True
    document.add_paragraph("one", style="List Bullet")
    document.add_paragraph("two", style="List Number")
    table = document.add_table(2, 2)
    for i, cell in enumerate(cell for row in table.rows for cell in row.cells):
        cell.text = f"cell {i}"
    document.add_paragraph("After the table")
    document.sections[0].header.paragraphs[0].text = "page header"
    assert word.text(written(document)) == (
        "A heading\n\nPlain, bold and a\ttab.\n\n• one\n• two\n\ncell 0\tcell 1\ncell 2\tcell 3\n\nAfter the table"
    )


def test_word_notes_changes_and_fields():
    body = """<w:p><w:r><w:t>Kept</w:t></w:r><w:ins><w:r><w:t xml:space="preserve"> added</w:t></w:r></w:ins>
    <w:del><w:r><w:delText>deleted</w:delText></w:r></w:del>
    <w:r><w:footnoteReference w:id="2"/></w:r>
    <w:hyperlink><w:r><w:t xml:space="preserve"> a link</w:t></w:r></w:hyperlink>
    <w:r><w:instrText>PAGE</w:instrText></w:r></w:p><w:p><w:r><w:t>Next</w:t><w:br/><w:t>line</w:t></w:r></w:p>"""
    notes = '<w:footnote w:id="2"><w:p><w:r><w:t>The note.</w:t></w:r></w:p></w:footnote>'
    data = packed(
        word_document__xml=f"<w:document {W}><w:body>{body}</w:body></w:document>",
        word_footnotes__xml=f"<w:footnotes {W}>{notes}</w:footnotes>",
    )
    assert word.text(data) == "Kept added[2] a link\n\n[2] The note.\n\nNext\nline"


OFFICE = 'xmlns:office="o" xmlns:text="t" xmlns:table="b"'
ODT = f"""<?xml version="1.0"?><office:document-content {OFFICE}><office:body><office:text>
<text:tracked-changes><text:p>deleted</text:p></text:tracked-changes>
<text:h>Heading</text:h>
<text:p>Two<text:s text:c="2"/>spaces, a <text:span>span</text:span><text:note>
<text:note-citation>1</text:note-citation>
<text:note-body><text:p>The note.</text:p></text:note-body></text:note> and<text:line-break/>a line.</text:p>
<text:list><text:list-item><text:p>one</text:p><text:list><text:list-item><text:p>inside</text:p></text:list-item>
</text:list></text:list-item><text:list-item><text:p>two</text:p></text:list-item></text:list>
<table:table><table:table-row><table:table-cell><text:p>a</text:p></table:table-cell><table:table-cell><text:p>b</text:p>
</table:table-cell></table:table-row></table:table><text:p>End</text:p></office:text></office:body>
</office:document-content>"""


@pytest.mark.parametrize("flat", [False, True])
def test_opendocument(flat):
    data = ODT.encode() if flat else packed(content__xml=ODT)
    assert odt.text(data) == (
        "Heading\n\nTwo  spaces, a span[1] and\na line.\n\n[1] The note.\n\n• one\n  • inside\n• two\n\na\tb\n\nEnd"
    )


def test_rtf():
    head = rb"{\rtf1\ansi\ansicpg1252{\fonttbl{\f0 Times;}}{\info{\author Somebody}}"
    document = head + rb"\b Bold\b0  caf\'e9 \u8364?\par Next\par}"
    assert rtf.text(document) == "Bold café €\nNext"
    cyrillic = rb"{\rtf1\ansi\ansicpg1251 \'cf\'f0\'e8\'e2\'e5\'f2\par}"
    assert rtf.text(cyrillic) == "Привет"


@pytest.mark.parametrize(
    ("read", "data", "reason"),
    [
        (word.text, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(512), "encrypted, or in the format of before 2007"),
        (word.text, b"PK\x03\x04 cut off", "damaged"),
        (word.text, packed(xl_workbook__xml="<a/>"), "damaged"),
        (word.text, packed(word_document__xml="<w:document"), "damaged"),
        (word.text, packed(word_document__xml=BOMB + "]><a>&i;</a>"), "damaged"),
        (word.text, packed(word_document__xml="<a>" + " " * (bounds.LARGEST_PART + 1)), "a part of more than 64 MiB"),
        (word.text, packed(word_document__xml="<a>" + " " * (20 << 20)), "unpacks to far more than text"),
        (odt.text, packed(META_x="y"), "damaged"),
        (odt.text, packed(content__xml="<x>"), "damaged"),
        (rtf.text, b"plain", "damaged"),
        (rtf.text, rb"{\rtf1 cut off", "ends too early"),
    ],
)
def test_what_cannot_be_read_says_why(read, data, reason):
    with pytest.raises(BadRecordError, match=reason):
        read(data)


def test_encrypted_opendocument():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("META-INF/manifest.xml", "<manifest><encryption-data/></manifest>")
        archive.writestr("content.xml", b"\x80\x81")
    with pytest.raises(BadRecordError, match="OpenDocument text: encrypted"):
        odt.text(buffer.getvalue())


def test_external_entities_are_not_read(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("SECRET")
    content = f'<!DOCTYPE a [<!ENTITY x SYSTEM "file://{secret}">]>' + ODT.split("?>", 1)[1].replace("End", "End &x;")
    with pytest.raises(BadRecordError, match="damaged"):  # an entity that is not known
        odt.text(packed(content__xml=content))


def test_a_missing_package_says_what_to_install():
    with pytest.raises(bounds.MissingPackageError, match=r"no_such_package, which is not installed: pip install 'slm"):
        bounds.need("no_such_package.inside", "RTF")
