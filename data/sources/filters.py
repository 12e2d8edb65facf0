"""Filters of documents: by length, by their share of letters, by script. Every rejection names the option behind it."""

from collections.abc import Callable
from typing import Any

from data.config import SourceConfig
from data.unicode_scripts import LETTER, OTHER, count_classes, scripts


def make_filter(source: SourceConfig) -> Callable[[str], str | None] | None:
    """A function that returns the option that rejects a text (``min_chars``, ``max_chars``, ``min_letters`` or
    ``script``), or None where the text passes; None without filters.

    Letters and scripts are those of ``data.unicode_scripts``. A document without letters has no script.
    """
    if not (source.min_chars or source.max_chars or source.min_letters or source.script):
        return None
    by_character = bool(source.min_letters or source.script)
    wanted = scripts().get(source.script_key, -1) if source.script else -1

    def reason(text: str) -> str | None:
        if len(text) < source.min_chars:
            return "min_chars"
        if source.max_chars and len(text) > source.max_chars:
            return "max_chars"
        if not by_character:
            return None
        counts = count_classes(text)
        letters = int(counts[LETTER:].sum())
        if letters < source.min_letters * (letters + int(counts[OTHER])):
            return "min_letters"
        if source.script and (letters == 0 or counts[wanted] < source.min_script * letters):
            return "script"
        return None

    return reason


def options(source: SourceConfig) -> tuple[tuple[str, Any], ...]:
    """The filters' options as (name, value); the script in lower case."""
    return (
        ("min_chars", source.min_chars),
        ("max_chars", source.max_chars),
        ("min_letters", source.min_letters),
        ("script", source.script_key),
        ("min_script", source.min_script),
    )
