"""Mistakes a person can mend, told in one line. The lowest room holds them so that every room may raise them."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """Something the person running a command can mend.

    The message is one line: what is wrong, what would be right, what to do next. Commands print it as it
    is and exit with status 2; any other exception is a defect of ours and keeps its traceback.
    """


class UnreachableError(UserError):
    """A host that could not be reached: something else may serve in its place."""


def nearest(name: str, options: Iterable[str], n: int = 3) -> str:
    """A hint for a misspelt ``name``: ``"did you mean 'q4_k_m' or 'q4_k_s'?"``, or ``""`` if nothing is near."""
    by_lower = {str(option).lower(): str(option) for option in options}
    close = get_close_matches(str(name).lower(), by_lower, n=n, cutoff=0.5)
    if not close:
        return ""
    return "did you mean " + " or ".join(repr(by_lower[match]) for match in close) + "?"
