"""EPUB books as text: the chapters in their order, each by the reader of HTML."""

import posixpath
from urllib.parse import unquote
from xml.etree import ElementTree

from slm.data.bad_records import BadRecordError
from slm.data.readers import html
from slm.data.readers.bounds import OneDocument, open_parts, part

KIND = "EPUB book"
LARGEST_BOOK = 256 << 20
"""Bytes of all chapters, unpacked."""
PAGES = ("application/xhtml+xml", "text/html", "application/x-dtbook+xml")


def text(data: bytes) -> str:
    """The text of a book: its chapters in reading order, without the table of contents that readers show as a menu.

    Raises BadRecordError for a damaged book and for one with DRM.
    """
    with open_parts(data, KIND) as archive:
        root = _xml(part(archive, "META-INF/container.xml", KIND), "META-INF/container.xml")
        package_name = next((each.get("full-path") for each in root.iter() if _is(each, "rootfile")), None)
        if not package_name:
            raise BadRecordError(f"{KIND}: damaged", detail="it names no package")
        package = _xml(part(archive, package_name, KIND), package_name)
        encrypted = _encrypted(part(archive, "META-INF/encryption.xml", KIND))
        items = {each.get("id"): each for each in package.iter() if _is(each, "item")}
        chapters, total = [], 0
        for reference in package.iter():
            item = items.get(reference.get("idref")) if _is(reference, "itemref") else None
            if item is None or item.get("media-type") not in PAGES or "nav" in (item.get("properties") or "").split():
                continue
            name = posixpath.normpath(posixpath.join(posixpath.dirname(package_name), unquote(item.get("href") or "")))
            if name in encrypted:
                raise BadRecordError(f"{KIND}: encrypted (DRM)")
            page = part(archive, name, KIND)
            if page is None:
                raise BadRecordError(f"{KIND}: damaged", detail=f"the chapter {name} is missing")
            total += len(page)
            if total > LARGEST_BOOK:
                raise BadRecordError(f"{KIND}: more than {LARGEST_BOOK >> 20} MiB")
            chapters.append(html.plain(html.decode(page), skip=["nav"]))
    return "\n\n".join(filter(None, chapters))


def _is(element: ElementTree.Element, name: str) -> bool:
    return element.tag.rpartition("}")[2] == name


def _xml(content: bytes | None, name: str) -> ElementTree.Element:
    if content is None:
        raise BadRecordError(f"{KIND}: damaged", detail=f"it has no {name}")
    try:
        return ElementTree.fromstring(content)
    except ElementTree.ParseError as error:
        raise BadRecordError(f"{KIND}: damaged", detail=f"{name}: {error}") from error


def _encrypted(content: bytes | None) -> set[str]:
    """The parts that are encrypted. (Fonts often are, without DRM.)"""
    if content is None:
        return set()
    root = _xml(content, "META-INF/encryption.xml")
    return {unquote(each.get("URI") or "") for each in root.iter() if _is(each, "CipherReference")}


READER = OneDocument(text)
