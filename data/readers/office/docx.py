"""Word documents as text: paragraphs, lists, tables, notes.

Own code: mammoth takes thirty times as long, python-docx leaves out notes, text boxes and tracked insertions.

Tested in tests/data/readers/office/test_office.py.
"""

from collections.abc import Iterator
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from slm.data.bad_records import BadRecordError
from slm.data.readers.bounds import OneDocument, open_parts, part
from slm.data.readers.html import tidy

KIND = "Word document"
PARTS = {"footnoteReference": "footnotes", "endnoteReference": "endnotes"}
SKIPPED = {"del", "moveFrom", "instrText", "Fallback", "pPr", "rPr", "tblPr", "sectPr", "commentReference"}
"""Elements without text of the document: deletions, codes of fields, copies for old programs, properties."""
OFF = ("0", "false", "off")

Notes = dict[tuple[str, str], str]
"""The text of a note by its part (``footnotes``) and its id."""


def text(data: bytes) -> str:
    """The text of a document as it would be printed, with tracked insertions and without tracked deletions, hidden
    text, comments, page headers and images. A note follows the paragraph that it belongs to."""
    with open_parts(data, KIND) as archive:
        main = next((each for each in archive.namelist() if each.endswith("word/document.xml")), "word/document.xml")
        body = _parsed(part(archive, main, KIND), main)
        if body is None:
            raise BadRecordError(f"{KIND}: damaged", detail="it has no word/document.xml")
        notes: Notes = {}
        for name in PARTS.values():
            root = _parsed(part(archive, main.replace("document.xml", f"{name}.xml"), KIND), name)
            for note in root if root is not None else ():
                notes[name, _value(note, "id")] = "".join(_blocks(note, {})).strip()
    return tidy("".join(_blocks(body, notes)))


def _parsed(content: bytes | None, name: str) -> Element | None:
    if content is None:
        return None
    try:
        # Python's parser fetches nothing, and its expat ends the expansion of nested entities.
        return ElementTree.fromstring(content)
    except ElementTree.ParseError as error:
        raise BadRecordError(f"{KIND}: damaged", detail=f"{name}: {error}") from error


def _name(element: Element) -> str:
    return element.tag.rpartition("}")[2]


def _value(element: Element, name: str) -> str:
    return next((value for key, value in element.attrib.items() if key.rpartition("}")[2] == name), "")


def _blocks(element: Element, notes: Notes) -> Iterator[str]:
    """Text from blocks: a blank line after a paragraph, a line for an item of a list and for a row of a table."""
    in_list = False
    for child in element:
        name = _name(child)
        if name in SKIPPED:
            continue
        if name == "p":
            after: list[str] = []
            found = "".join(_inline(child, notes, after)).strip("\n")
            item = _is_item(child)
            if in_list and not item:
                yield "\n"
            in_list = item
            if found.strip():
                yield f"• {found.strip()}\n" if item else f"{found}\n\n"
            yield from (f"{each}\n\n" for each in after if each)
        elif name == "tbl":
            if in_list:
                yield "\n"
            in_list = False
            yield from _rows(child, notes)
            yield "\n"
        else:
            yield from _blocks(child, notes)


def _is_item(paragraph: Element) -> bool:
    """Whether a paragraph is an item of a list; headings are numbered by the same means."""
    properties = next((each for each in paragraph if _name(each) == "pPr"), None)
    if properties is None:
        return False
    style = next((_value(each, "val") for each in properties if _name(each) == "pStyle"), "")
    numbered = next((each for each in properties if _name(each) == "numPr"), None)
    if numbered is not None:
        number = next((_value(each, "val") for each in numbered if _name(each) == "numId"), "")
        return number != "0" and not style.startswith("Heading")
    return style.startswith("List") and style != "ListContinue"


def _rows(table: Element, notes: Notes) -> Iterator[str]:
    for row in table:
        if _name(row) == "tr":
            cells = ["".join(_blocks(cell, notes)) for cell in row if _name(cell) == "tc"]
            if any(map(str.strip, cells)):
                yield "\t".join(" ".join(cell.split()) for cell in cells) + "\n"


def _inline(element: Element, notes: Notes, after: list[str]) -> Iterator[str]:
    """The text of a paragraph. Notes and text boxes are put into ``after``."""
    for child in element:
        name = _name(child)
        if name == "t":
            yield child.text or ""
        elif name in ("tab", "ptab"):
            yield "\t"
        elif name in ("br", "cr"):
            yield "\n"
        elif name == "noBreakHyphen":
            yield "-"
        elif name in PARTS:
            number = _value(child, "id")
            after.append(f"[{number}] {notes.get((PARTS[name], number), '')}".strip())
            yield f"[{number}]"
        elif name == "txbxContent":
            after.append("".join(_blocks(child, notes)).strip())
        elif name not in SKIPPED and not (name == "r" and _is_hidden(child)):
            yield from _inline(child, notes, after)


def _is_hidden(run: Element) -> bool:
    properties = next((each for each in run if _name(each) == "rPr"), None)
    if properties is None:
        return False
    return any(_name(each) == "vanish" and _value(each, "val") not in OFF for each in properties)


READER = OneDocument(text)
