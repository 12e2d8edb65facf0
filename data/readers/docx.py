"""Word documents as text, by mammoth (BSD-2-Clause) and the reader of HTML: footnotes, tables, lists; no images.

Tested in tests/data/readers/test_office.py.
"""

import io
import re

from data.bad_records import BadRecordError
from data.readers import html
from data.readers.bounds import OneDocument, check_size, need, open_parts

BACK = re.compile(r"[ \t]*↑(?=\n|$)")
"""The link with which mammoth ends a footnote."""
LARGEST_PART = 24 << 20
"""Bytes of XML in a part: mammoth takes about 30 times that of memory. Of text alone that is some 2,000 pages."""


def text(data: bytes) -> str:
    """The text of a document: deleted and hidden parts and comments are left out, footnotes stand at its end."""
    mammoth = need("mammoth", "Word")
    with open_parts(data, "Word document") as archive:
        if "word/document.xml" not in archive.namelist() and "_rels/.rels" not in archive.namelist():
            raise BadRecordError("Word document: damaged", detail="it has no word/document.xml")
        for info in archive.infolist():
            if info.filename.endswith((".xml", ".rels")):
                check_size(info, LARGEST_PART)
    try:
        page = mammoth.convert_to_html(io.BytesIO(data), convert_image=_no_image).value
    except Exception as error:  # whatever a damaged file makes of its XML
        raise BadRecordError("Word document: damaged", detail=error) from error
    return BACK.sub("", html.plain(f"<html><body>{page}</body></html>"))


def _no_image(image: object) -> list[object]:
    return []


READER = OneDocument(text)
