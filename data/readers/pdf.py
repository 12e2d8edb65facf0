"""PDF as text, by PDFium (pypdfium2, BSD and Apache-2.0): lines are joined to paragraphs, page headers left out."""

import itertools
import re
from collections import Counter, defaultdict
from ctypes import byref
from dataclasses import dataclass
from typing import Any

from slm.data.bad_records import BadRecordError
from slm.data.readers.bounds import OneDocument, need

REPEATED = 3
"""A line that is the first or the last of this many pages is a page header or footer; two are enough for one that has
the page's number in it."""
NUMBER = re.compile(r"\d{1,6}|\b[ivxlc]{1,7}$")
"""A number, or a Roman one at a line's end."""
_ROMAN = {"i": 1, "v": 5, "x": 10, "l": 50, "c": 100}
SURE = 0.9
"""Share of a word's estimated width."""
BLANK = 1.35
"""Lines that are this many times the usual distance apart, or their own height, have a blank line between them."""
LEAST_LETTERS = 4
"""Letters a page, on average; with less a file is a scan, and what it holds are stamps."""
ODD = 0.2
"""Share of characters that stand for none (private or unassigned): then a font does not say what it draws."""
LIST_ITEM = re.compile(r"(?:[•◦▪‣*–—-]|\(?(?:\d{1,3}|[a-z])[.)])\s")
HYPHENS = dict.fromkeys((0x02, 0xFFFE))
"""What PDFium gives for a hyphen at the end of a line that divides a word; it has joined the word then."""


@dataclass
class Line:
    """A line of a page. Coordinates are in points, from the lower left corner."""

    text: str
    left: float
    right: float
    bottom: float
    last_bottom: float
    """Bottom of the line's end. PDFium merges two lines that a divided word joins."""
    height: float


def text(data: bytes) -> str:
    """The text of all pages; BadRecordError for an encrypted, a damaged and a scanned file."""
    pdfium = need("pypdfium2", "PDF")
    raw = need("pypdfium2.raw", "PDF")
    if b"%PDF-" not in data[:1024]:
        raise BadRecordError("PDF: damaged (it does not begin as PDF files do)")
    try:
        document = pdfium.PdfDocument(data)
    except pdfium.PdfiumError as error:
        if getattr(error, "err_code", None) == raw.FPDF_ERR_PASSWORD:
            raise BadRecordError("PDF: encrypted (save it without a password)") from error
        raise BadRecordError("PDF: damaged (no page of it can be read)") from error
    try:
        pages = [_lines(document, number, pdfium, raw) for number in range(len(document))]
    finally:
        document.close()
    if not pages:
        raise BadRecordError("PDF: damaged (it has no page)")
    letters = "".join(line.text for page in pages for line in page)
    n_letters = sum(map(str.isalnum, letters))
    if n_letters < LEAST_LETTERS * len(pages):
        raise BadRecordError("PDF: a scan, which has no text (recognise it first, for example with ocrmypdf)")
    if sum(map(_is_odd, letters)) > ODD * len(letters):
        raise BadRecordError("PDF: its fonts do not say which characters they draw (recognise its text first)")
    return _join(_without_headers(pages))


def _is_odd(character: str) -> bool:
    return "\ue000" <= character <= "\uf8ff" or character == "\ufffd" or (character < " " and character not in "\t\n")


def _lines(document: Any, number: int, pdfium: Any, raw: Any) -> list[Line]:
    """The lines of a page in the order in which they are drawn."""
    found: list[Line] = []
    try:
        page = document[number]
        words = page.get_textpage()
        at = 0
        for each in words.get_text_range(errors="replace").split("\r\n"):
            stripped = each.strip()
            if stripped:
                first = at + len(each) - len(each.lstrip())
                left, bottom, _, top = _box(words, first, raw)
                _, last_bottom, right, last_top = _box(words, first + len(stripped) - 1, raw)
                height = max(1.0, top - bottom, last_top - last_bottom)
                found.append(Line(stripped.translate(HYPHENS), left, max(left, right), bottom, last_bottom, height))
            at += len(each) + 2
        words.close()
        page.close()
    except pdfium.PdfiumError as error:
        raise BadRecordError("PDF: damaged (a page cannot be read)", detail=f"page {number + 1}") from error
    return found


def _box(words: Any, index: int, raw: Any) -> tuple[float, float, float, float]:
    """Left, bottom, right and top of a character; zeros where it has no place."""
    box = raw.FS_RECTF()
    if not raw.FPDFText_GetLooseCharBox(words, index, byref(box)):
        return 0.0, 0.0, 0.0, 0.0
    return box.left, box.bottom, box.right, box.top


def _without_headers(pages: list[list[Line]]) -> list[list[Line]]:
    """Pages without page numbers, and without first and last lines that other pages have, too."""
    with_number = set[int]()  # pages without their number now: a further line with one is no header
    for edge in (0, -1):
        for _ in range(2):  # of headers of two lines
            lines = {number: page[edge].text for number, page in enumerate(pages) if page}
            same = Counter(lines.values())
            ahead = {number: _numbers(line, number) for number, line in lines.items() if number not in with_number}
            numbered = Counter(each for found in ahead.values() for each in found)
            for number, line in lines.items():
                counts = any(numbered[each] >= least for each, least in ahead.get(number, {}).items())
                if counts:
                    with_number.add(number)
                if counts or same[line] >= REPEATED or line.strip("-–| ").isdigit():
                    del pages[number][edge]
    return pages


def _numbers(line: str, page: int) -> dict[tuple[str, int, int], int]:
    """A line without its numbers, which of them it is, and how far that is ahead of the page: alike in headers with the
    page's number, also next to how many pages there are. With how many pages must have such a line."""
    without, numbers = NUMBER.sub("#", line), NUMBER.findall(line)
    last = len(numbers) - 1
    return {(without, at, _value(each) - page): 2 if at == last else REPEATED for at, each in enumerate(numbers)}


def _value(number: str) -> int:
    if number.isdigit():
        return int(number)
    values = [_ROMAN[each] for each in number]
    return sum(-one if one < other else one for one, other in zip(values, [*values[1:], 0], strict=True))


def _join(pages: list[list[Line]]) -> str:
    """Paragraphs: a line that fills its column goes on in the next one, across pages too."""
    parts: list[str] = []
    before: Line | None = None
    edges = _right_edges(pages)
    for page in pages:
        new_page = True
        distance = _usual_distance(page)
        for line in page:
            if before is not None:
                parts.append(_between(before, line, edges[_place(before)], 0.0 if new_page else distance))
            parts.append(line.text)
            before, new_page = line, False
    return "".join(parts)


def _usual_distance(page: list[Line]) -> float:
    """From a line to the next one, in points."""
    pairs = itertools.pairwise(page)
    found = Counter(round(first.last_bottom - second.bottom) for first, second in pairs)
    near = {distance: count for distance, count in found.items() if 2 <= distance <= 60}
    return float(max(near, key=lambda distance: (near[distance], -distance))) if near else 1.0


def _right_edges(pages: list[list[Line]]) -> dict[int, float]:
    """How far lines reach that begin in about the same place: the right edge of their column, by ``_place``."""
    reach: dict[int, list[float]] = defaultdict(list)
    for page in pages:
        for line in page:
            for place in range(_place(line) - 3, _place(line) + 4):
                reach[place].append(line.right)
    edges = {}
    for place, found in reach.items():
        found.sort()
        edges[place] = found[-1 - len(found) // 30]  # a few lines, titles for example, span several columns
    return edges


def _place(line: Line) -> int:
    return int(line.left // 16)


def _between(before: Line, line: Line, right: float, distance: float) -> str:
    """What stands between two lines: a space, a line end or a blank line. ``distance``: 0 at the first of a page.

    A line goes on in the next one if the next one's first word had no room in it.
    """
    word = len(line.text.split(None, 1)[0]) + 1
    width = SURE * word * (line.right - line.left) / len(line.text)
    fills = before.right + width > right and right - before.left > 10 * before.height
    below = before.last_bottom - line.bottom
    elsewhere = not distance or below <= 0  # the next page or column
    near = elsewhere or below <= BLANK * max(distance, before.height)
    indented = line.left > before.left + 0.8 * before.height and not LIST_ITEM.match(before.text)
    goes_on = fills and near and not LIST_ITEM.match(line.text)
    if elsewhere:  # only within a sentence
        goes_on = goes_on and line.text[:1].islower()
    elif indented:
        goes_on = False
    if goes_on:
        return " "
    return "\n" if near and not elsewhere else "\n\n"


READER = OneDocument(text)
