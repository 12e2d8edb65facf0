"""HTML as text: the main text of a page, or all of it. Parsed by resiliparse (Apache-2.0), which fetches nothing."""

import re
from collections.abc import Sequence
from typing import Any

from slm.data.readers.bounds import OneDocument, need

NAVIGATION = (
    *("nav", "button", "template", "dialog", "[role=navigation]", "[role=search]", "[role=banner]"),
    *(".sphinxsidebar", ".related", ".breadcrumbs", ".toctree-wrapper", ".skip-link", ".navbar", ".toc", "#toc"),
    *("a.headerlink", "a.anchor", "a.anchorlink", ".linenos", ".copybtn", ".cookie-banner"),
)
"""What is no text of a page, as CSS selectors: menus, and the signs that documentation puts next to headings."""
MAIN = "main, [role=main]"
LEAST_SHARE = 0.05
"""Where the main text has less than this share of a page's text, the page has no clear main text: all of it is read."""
CLEAR = 2000
"""Characters of main text that are enough, whatever the share."""


def text(data: bytes) -> str:
    """The main text of a page: without menus, headers, footers; headings, lists, tables and code keep their lines.

    The encoding comes from the byte order mark, from the page's own ``meta`` or from the bytes. A page marks its main
    text (``<main>``, ``role=main``), or resiliparse's rules find it.
    """
    html_tree = need("resiliparse.parse.html", "HTML").HTMLTree
    tree = html_tree.parse(decode(data))
    marked = tree.document.query_selector_all(MAIN) if tree.document is not None else []
    if len(marked) == 1:
        found = plain(f"<html><body>{marked[0].html}</body></html>", skip=NAVIGATION)
        if found:
            return found
    found = plain(tree, main=True, skip=NAVIGATION)
    if len(found) < CLEAR:
        everything = plain(tree, skip=NAVIGATION)
        if len(found) < LEAST_SHARE * len(everything):
            return everything
    return found


def plain(page: Any, *, main: bool = False, skip: Sequence[str] = ()) -> str:
    """The text of a page (a string, or resiliparse's tree), without scripts, styles, comments, images, addresses."""
    extract = need("resiliparse.extract.html2text", "HTML").extract_plain_text
    found = extract(
        page, preserve_formatting=True, main_content=main, list_bullets=True, alt_texts=False, links=False,
        form_fields=False, noscript=False, comments=True, skip_elements=list(skip),
    )  # fmt: skip
    return tidy(found)


def decode(data: bytes) -> str:
    """The characters of bytes without a stated encoding: by their mark, as UTF-8, by ``meta``, or by their look."""
    for mark, name in ((b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"), (b"\xef\xbb\xbf", "utf-8")):
        if data.startswith(mark):
            return data[len(mark) :].decode(name, "replace")
    start = data[:8192]
    if start.count(b"\0") > len(start) // 4:  # UTF-16 without a mark: every second byte of most text
        return data.decode(
            "utf-16-be" if start[::2].count(b"\0") > start[1::2].count(b"\0") else "utf-16-le", "replace"
        )
    if data.isascii() and b"\x1b$" not in data and b"~{" not in data:  # neither ISO-2022 nor HZ
        return data.decode("ascii")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        pass
    name = need("resiliparse.parse.encoding", "HTML").detect_encoding(data, from_html_meta=True)
    try:
        return data.decode(name or "utf-8", "replace")
    except LookupError:
        return data.decode("utf-8", "replace")


def tidy(found: str) -> str:
    """Without spaces at line ends, and with at most one blank line in a row."""
    lines = [line.rstrip() for line in found.replace("\r\n", "\n").replace("\xa0", " ").split("\n")]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")


READER = OneDocument(text)
