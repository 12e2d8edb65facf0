"""RTF documents as text, by striprtf (BSD-3-Clause).

Tested in tests/data/readers/office/test_office.py.
"""

from slm.data.bad_records import BadRecordError
from slm.data.readers.bounds import OneDocument, need
from slm.data.readers.html import tidy


def text(data: bytes) -> str:
    """The text of a document. Its own code page says what its bytes are."""
    if not data.lstrip().startswith(b"{\\rtf"):
        raise BadRecordError("RTF document: damaged (it does not begin as RTF files do)")
    if not data.rstrip(b"\0 \t\r\n").endswith(b"}"):
        raise BadRecordError("RTF document: damaged (it ends too early)")
    striprtf = need("striprtf.striprtf", "RTF")
    try:
        found = striprtf.rtf_to_text(data.decode("latin-1"), encoding="cp1252", errors="replace")
    except Exception as error:  # whatever a damaged file brings it to
        raise BadRecordError("RTF document: damaged", detail=error) from error
    return tidy(found)


READER = OneDocument(text)
