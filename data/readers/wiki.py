"""Dumps of MediaWiki (``...-pages-articles.xml.bz2``): each article is a document, its wikitext made plain.

Parsed by mwparserfromhell (MIT). Templates are not expanded: what they would write is missing.
"""

import re
from collections.abc import Iterator
from typing import Any, BinaryIO
from xml.etree import ElementTree

from slm.data.bad_records import BadRecordError
from slm.data.readers.bounds import need
from slm.data.readers.html import tidy
from slm.data.readers.reader import CHUNK, Reading, chunk_at

BEGIN, END = b"<page>", b"</page>"
TAIL = 4096
"""Bytes at the end of a dump that hold its end mark."""
LONGEST_PAGE = 64 << 20
"""Bytes of a page; with its history a page may be longer, and such dumps are not meant for reading."""
ROOT = re.compile(rb"\A\s*(?:<\?xml.*?\?>\s*)?(?:<!--.*?-->\s*)*<mediawiki\b", re.DOTALL)
SKIPPED_TAGS = {
    *(
        "ref",
        "references",
        "gallery",
        "timeline",
        "imagemap",
        "score",
        "graph",
        "mapframe",
        "maplink",
        "templatestyles",
    ),
    *("chem", "hiero", "inputbox", "categorytree"),
}
EMPTY_BRACKETS = re.compile(r"[ \t]*\([\s,;:]*\)")
"""What is left where a template stood alone in brackets."""
SWITCH = re.compile(r"^\s*__[A-Z]+__\s*$|__(?:NO|FORCE)?TOC__", re.MULTILINE)
ITEM = re.compile(r"^• +", re.MULTILINE)
LINK_TARGET = re.compile(r"^\s*:?[A-Za-zÀ-ÿ][\w -]*:\S")


class Wiki:
    """The reader of dumps. Positions are bytes: of a page its end."""

    def read(self, stream: BinaryIO, path: str, start: int, reading: Reading) -> Iterator[tuple[bytes, int]]:
        """The pages from a position on. What stands in a dump is escaped, so the marks of pages are its own."""
        buffer = stream.read(CHUNK)
        if not ROOT.match(buffer):
            raise BadRecordError("XML that is no dump of MediaWiki (of XML, only those are read)")
        buffer, position = chunk_at(stream, buffer, start)
        if not buffer:
            return
        at = max(0, start - position)  # what stands before it in the buffer is done
        while True:
            begin = buffer.find(BEGIN, at)
            end = buffer.find(END, begin) if begin >= 0 else -1
            if end >= 0:
                at = end + len(END)
                yield buffer[begin:at], position + at
                continue
            chunk = stream.read(CHUNK)
            if not chunk:
                break
            kept = begin if begin >= 0 else max(at, len(buffer) - len(BEGIN))
            buffer, position, at = buffer[kept:] + chunk, position + kept, 0
            if len(buffer) > LONGEST_PAGE:
                raise BadRecordError(f"a page of a dump with more than {LONGEST_PAGE >> 20} MiB", offset=position)
        if buffer.find(BEGIN, at) >= 0 or b"</mediawiki>" not in buffer[-TAIL:]:
            raise BadRecordError("a dump that ends too early", offset=position + at)

    def parse(self, raw: bytes, end: int, reading: Reading) -> str:
        """The title and text of an article; ``""`` for redirects, talk, categories and other pages about pages."""
        try:
            page = ElementTree.fromstring(raw)
        except ElementTree.ParseError as error:
            raise BadRecordError("a page of a dump that is no XML", detail=error, offset=end) from error
        if (page.findtext("ns") or "0") != "0" or page.find("redirect") is not None:
            return ""
        revisions = page.findall("revision")
        wikitext = revisions[-1].findtext("text") if revisions else None
        if not wikitext or (revisions[-1].findtext("model") or "wikitext") != "wikitext":
            return ""
        return f"{page.findtext('title')}\n\n{plain(wikitext)}"


READER = Wiki()


def plain(wikitext: str) -> str:
    """Wikitext without templates, tables' markup, files, categories and references; links by what they show."""
    parser = need("mwparserfromhell", "MediaWiki")
    code = parser.parse(wikitext, skip_style_tags=True)
    parts = [_text(node, parser.nodes) for node in code.nodes]
    found = "".join(parts).replace("'''", "").replace("''", "")
    found = ITEM.sub("• ", SWITCH.sub("", EMPTY_BRACKETS.sub("", found)))
    return tidy(found)


def _text(node: Any, nodes: Any) -> str:
    """The text of a node. (The library's own ``strip_code`` keeps captions, categories and table styles.)"""
    if isinstance(node, nodes.Text):
        return str(node.value)
    if isinstance(node, nodes.Wikilink):
        if (LINK_TARGET.match(str(node.title)) and node.text is None) or _is_file(str(node.title)):
            return ""
        return _all(node.text if node.text is not None else node.title, nodes)
    if isinstance(node, nodes.ExternalLink):
        return _all(node.title, nodes) if node.title is not None else ("" if node.brackets else str(node.url))
    if isinstance(node, nodes.Heading):
        return _all(node.title, nodes).strip() + "\n"
    if isinstance(node, nodes.HTMLEntity):
        return str(node.normalize())
    if isinstance(node, nodes.Tag):
        return _tag(node, nodes)
    return ""  # templates, their arguments, comments


def _all(code: Any, nodes: Any) -> str:
    return "".join(_text(node, nodes) for node in code.nodes) if code is not None else ""


def _is_file(title: str) -> bool:
    """Whether a link shows an image or puts the page into a category, in the languages of most dumps."""
    return title.partition(":")[0].strip().casefold() in FILES if ":" in title else False


FILES = {
    *("file", "image", "category", "media", "datei", "bild", "kategorie", "fichier", "catégorie", "archivo", "imagen"),
    *("categoría", "immagine", "categoria", "ficheiro", "imagem", "bestand", "afbeelding", "categorie", "plik"),
    *(
        "kategoria",
        "файл",
        "изображение",
        "категория",
        "ファイル",
        "画像",
        "文件",
        "分类",
        "檔案",
        "分類",
        "파일",
        "분류",
    ),
    *("fil", "soubor", "kategória", "tiedosto", "luokka", "dosya", "ملف", "تصنيف", "קובץ", "קטגוריה", "تصویر", "رده"),
}


def _tag(node: Any, nodes: Any) -> str:
    name = str(node.tag).strip().lower()
    if name in SKIPPED_TAGS:
        return ""
    if name in ("br", "hr"):
        return "\n"
    inside = _all(node.contents, nodes)
    if name == "table":
        return f"\n{inside}\n"
    if name in ("tr", "caption"):
        return "\n" + inside.strip() + "\n"
    if name in ("td", "th"):
        return " ".join(inside.split()) + "\t"
    if name == "li":
        return "• " + inside.lstrip()
    if name in ("dt", "dd"):
        return inside.lstrip()
    return inside
