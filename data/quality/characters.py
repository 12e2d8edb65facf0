"""Filters by length, by the share of letters, and by script.

Letters and scripts are those of ``slm.data.unicode_scripts``. A document without letters has no script.

Tested in tests/data/sources/test_filters.py.
"""

from collections.abc import Callable

from slm.data.config import SourceConfig
from slm.data.unicode_scripts import LETTER, OTHER, count_classes, scripts


def by_characters(source: SourceConfig) -> Callable[[str], str | None] | None:
    """A function that returns the option that rejects a text (``min_chars``, ``max_chars``, ``min_letters`` or
    ``script``), or None where the text passes; None without such options."""
    if not (source.min_chars or source.max_chars or source.min_letters or source.script):
        return None
    by_class = bool(source.min_letters or source.script)
    wanted = scripts().get(source.script_key, -1) if source.script else -1

    def reason(text: str) -> str | None:
        if len(text) < source.min_chars:
            return "min_chars"
        if source.max_chars and len(text) > source.max_chars:
            return "max_chars"
        if not by_class:
            return None
        counts = count_classes(text)
        letters = int(counts[LETTER:].sum())
        if letters < source.min_letters * (letters + int(counts[OTHER])):
            return "min_letters"
        if source.script and (letters == 0 or counts[wanted] < source.min_script * letters):
            return "script"
        return None

    return reason
