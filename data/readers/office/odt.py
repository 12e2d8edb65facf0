"""OpenDocument texts (LibreOffice) as text: paragraphs, lists, tables and notes of their content.

Tested in tests/data/readers/office/test_office.py.
"""

from collections.abc import Iterator
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from slm.data.bad_records import BadRecordError
from slm.data.readers.bounds import LARGEST_PART, OneDocument, open_parts, part
from slm.data.readers.html import tidy

KIND = "OpenDocument text"
SKIPPED = {
    *("tracked-changes", "annotation", "sequence-decls", "variable-decls", "user-field-decls", "forms"),
    *("bookmark", "bibliography-mark", "table-of-content", "alphabetical-index", "title", "desc", "note-citation"),
}
"""Elements that hold no text of the document: deletions, comments, indexes that a program makes."""


def text(data: bytes) -> str:
    """The text of a document, a packed one (.odt) or a flat one (.fodt)."""
    if data.lstrip()[:5] == b"<?xml":
        content: bytes | None = data[: LARGEST_PART + 1]
        if len(data) > LARGEST_PART:
            raise BadRecordError(f"{KIND}: more than {LARGEST_PART >> 20} MiB")
    else:
        with open_parts(data, KIND) as archive:
            if b"encryption-data" in (part(archive, "META-INF/manifest.xml", KIND) or b""):
                raise BadRecordError(f"{KIND}: encrypted (save it without a password)")
            content = part(archive, "content.xml", KIND)
    if content is None:
        raise BadRecordError(f"{KIND}: damaged", detail="it has no content.xml")
    try:
        # Python's parser fetches nothing, and its expat ends the expansion of nested entities.
        root = ElementTree.fromstring(content)
    except ElementTree.ParseError as error:
        raise BadRecordError(f"{KIND}: damaged", detail=error) from error
    body = next((each for each in root.iter() if _name(each) == "body"), root)
    return tidy("".join(_blocks(body, "")))


def _name(element: Element) -> str:
    return element.tag.rpartition("}")[2]


def _attribute(element: Element, name: str) -> str | None:
    return next((value for key, value in element.attrib.items() if key.rpartition("}")[2] == name), None)


def _blocks(element: Element, indent: str) -> Iterator[str]:
    """Text from blocks: a blank line after a paragraph, a line for an item of a list and for a row of a table."""
    for child in element:
        name = _name(child)
        if name in SKIPPED:
            continue
        if name in ("p", "h"):
            notes: list[str] = []
            yield indent + _inline(child, notes).strip("\n") + "\n\n"
            yield from (f"{note}\n\n" for note in notes)
        elif name == "list":
            for item in child:
                inside = "".join(_blocks(item, "")).strip("\n").replace("\n\n", "\n")
                if inside.strip():
                    yield f"{indent}• " + inside.replace("\n", f"\n{indent}  ") + "\n"
            yield "\n"
        elif name == "table":
            yield from _rows(child)
            yield "\n"
        else:
            yield from _blocks(child, indent)


def _rows(table: Element) -> Iterator[str]:
    for row in table.iter():
        if _name(row) == "table-row":
            cells = ["".join(_blocks(cell, "")).strip() for cell in row if _name(cell) == "table-cell"]
            if any(cells):
                yield "\t".join(" ".join(cell.split()) for cell in cells) + "\n"


def _inline(element: Element, notes: list[str]) -> str:
    """The text of a paragraph. A note's text is put into ``notes``; its number stays where it is."""
    parts = [element.text or ""]
    for child in element:
        name = _name(child)
        if name == "s":
            count = _attribute(child, "c") or "1"
            parts.append(" " * min(int(count) if count.isdigit() else 1, 1000))
        elif name == "tab":
            parts.append("\t")
        elif name == "line-break":
            parts.append("\n")
        elif name == "note":
            citation = next((each.text or "" for each in child if _name(each) == "note-citation"), "")
            body = "".join(_blocks(child, "")).strip()
            notes.append(f"[{citation}] {body}")
            parts.append(f"[{citation}]")
        elif name in ("text-box", "frame"):
            notes.append("".join(_blocks(child, "")).strip())
        elif name not in SKIPPED:
            parts.append(_inline(child, notes))
        parts.append(child.tail or "")
    return "".join(parts)


READER = OneDocument(text)
