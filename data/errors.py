"""Errors that the user can correct, each with a message of one line, and what else is told in one line.

They are in the lowest room so that every room can raise them.
"""

import functools
import os
from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """An error that the user of a command can correct.

    The message is one line: what is wrong, what would be right, what to do next. Commands print it unchanged and exit
    with status 2. Any other exception is a bug of ours and keeps its traceback.
    """


class UnreachableError(UserError):
    """A host could not be reached. The caller may have a fallback."""


def one_line(error: object, limit: int | None = None) -> str:
    """The error's text on one line; with ``limit`` cut after this many characters.

    Control characters, of a downloaded file's text for one, would move a terminal's cursor: they become a visible sign.
    """
    return without_controls(" ".join(str(error).split())[:limit])


def without_controls(text: str) -> str:
    """The text with a visible sign for each control character."""
    return "".join("\N{REPLACEMENT CHARACTER}" if c < " " or "\x7f" <= c <= "\x9f" else c for c in text)


def excerpt(text: object) -> str:
    """The beginning of a text, or of another program's message, on one line: enough within a message of ours."""
    return one_line(text, 200)


def nearest(name: str, options: Iterable[str], n: int = 3, *, at_least: float = 0.5) -> str:
    """A hint for a misspelt ``name``: ``"did you mean 'q4_k_m' or 'q4_k_s'?"``, or ``""`` if no option is similar.

    ``at_least``: the similarity of an option that is offered, between 0 and 1 (``difflib``'s ratio).
    """
    by_lower = {str(option).lower(): str(option) for option in options}
    close = get_close_matches(str(name).lower(), by_lower, n=n, cutoff=at_least)
    if not close:
        return ""
    return "did you mean " + " or ".join(repr(by_lower[match]) for match in close) + "?"


@functools.cache
def say_once(line: str) -> None:
    """Print a line, once in a process."""
    print(line, flush=True)


def not_utf8(path: object) -> str | None:
    """What is said of a path with a name that is not UTF-8, which can be neither printed nor written into a record;
    None for any other."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return f"{os.fsencode(str(path))!r}: a name in this path is not UTF-8"
    return None
