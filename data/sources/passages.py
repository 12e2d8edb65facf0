"""The passage of a long document that is held out for validation, so that few large files can be split, too."""

import re

PARAGRAPH = re.compile(r"\n[ \t\r]*\n\s*")
FARTHEST = 1000
"""The most characters that a passage is lengthened by at either end, to begin and end with a paragraph."""
FARTHEST_SHARE = 50
"""It is also lengthened by no more than this part of the document, a fiftieth."""


def middle(text: str, share: float) -> slice:
    """Where the passage is: about ``share`` of the text's characters, around its middle, never empty.

    It begins and ends between paragraphs where one ends nearby, else between lines, else between words. The passage
    of a larger share contains that of a smaller one.
    """
    length = len(text)
    farthest = min(FARTHEST, length // FARTHEST_SHARE)
    start = int(length * (1 - share) / 2)
    end = max(start + 1, int(length * (1 + share) / 2))
    return slice(_boundary_before(text, start, farthest), _boundary_after(text, end, farthest))


def without(text: str, passage: slice) -> str:
    """The text before the passage and after it, as one text."""
    return text[: passage.start] + text[passage.stop :]


def _boundary_before(text: str, position: int, farthest: int) -> int:
    low = min(max(1, position - farthest), position)
    paragraphs = [match.end() for match in PARAGRAPH.finditer(text, low, position)]
    if paragraphs:
        return paragraphs[-1]
    return _after(text.rfind("\n", low, position)) or _after(text.rfind(" ", low, position)) or position


def _boundary_after(text: str, position: int, farthest: int) -> int:
    high = min(len(text), position + farthest)
    paragraph = PARAGRAPH.search(text, position, high)
    if paragraph:
        return paragraph.end()
    return _after(text.find("\n", position, high)) or _after(text.find(" ", position, high)) or position


def _after(index: int) -> int:
    """The position after a character that was found at ``index``; 0 where none was found."""
    return index + 1
