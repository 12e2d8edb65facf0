"""The filters of a source together: which option rejects a document, and what is changed in those that pass.

The filters that read language (rules, a user's function, evaluation texts) see only what is said in a conversation.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

from slm.data.chat.formats import from_document, plain_text, to_document
from slm.data.config import FILTERS, SourceConfig
from slm.data.errors import UserError
from slm.data.quality import blocked, c4, language, own, personal
from slm.data.quality.contamination import LONG, Contamination
from slm.data.quality.repetition import VERSION as RULES_VERSION
from slm.data.quality.repetition import Rules, broken_rule
from slm.data.quality.words import by_characters
from slm.data.readers.reader import url_of
from slm.data.sources import files
from slm.data.sources.compressed import open_binary
from slm.data.sources.conversations import chat_files
from slm.data.storage import stamps

Reason = Callable[[str], str | None]
Change = Callable[[str], str]
CUT = "[passage of data.decontaminate]"
"""What ``note`` of ``make_change`` is told of a passage that is cut out."""
LINE = "[line of rules=c4]"
"""What it is told of a line that C4's rules leave out."""
_NOT_SPOKEN = ("role", "name", "type", "id", "tool_call_id")
"""Fields of a message that hold no text of a person."""


def make_filter(source: SourceConfig, *, validation_text: bool = False) -> Reason | None:
    """A function that returns the option that rejects a text (``min_chars``, ``script``, ``rules``, ...), or None where
    the text passes; None without filters.

    ``validation_text``: the text is separate validation text, which may be what ``decontaminate`` names.
    """
    characters = by_characters(source)
    spoken: Change = plain_text if source.is_chat else str
    steps: list[Reason] = []
    if source.languages:
        language.check(source.languages)
        steps.append(lambda text: _foreign(text, frozenset(source.languages)))
    if gopher := _gopher(source):
        steps.append(lambda text: (rule := broken_rule(text, gopher)) and f"rules ({rule})")
    if "c4" in source.rule_sets:
        steps.append(lambda text: (rule := c4.clean(text).broken) and f"rules ({rule})")
    if source.blocked_words:
        words = _words(source.blocked_words, blocked.identity(source.blocked_words, blocked.WORDS))
        steps.append(lambda text: "blocked_words" if words.found(text) else None)
    if source.filter:
        keeps = own.own_filter(source.filter)
        steps.append(lambda text: None if keeps(text) else "filter")
    if source.decontaminate and not validation_text:
        contamination = _contamination(stamps(_evaluation_files(source)))
        long = float("inf") if source.is_chat else LONG
        steps.append(lambda text: "decontaminate" if len(text) < long and contamination.is_in(text) else None)
    urls = None
    if source.blocked_urls:
        urls = _urls(source.blocked_urls, blocked.identity(source.blocked_urls, blocked.URLS))
    if not steps and urls is None:
        return characters

    def reason(text: str) -> str | None:
        if urls is not None and urls.found(url_of(text)):
            return "blocked_urls"
        if characters is not None and (found := characters(text)):
            return found
        said = spoken(text)
        return next((found for step in steps if (found := step(said))), None)

    return reason


def make_change(
    source: SourceConfig, *, validation_text: bool = False, note: Callable[[str, str], None] | None = None
) -> Change | None:
    """A function from a document that passes to the text that is read in its place; None where that is always the same.

    ``note`` is told what is masked or cut out, as a mark of its kind and what stood there.
    """
    steps: list[Change] = []
    if "c4" in source.rule_sets:

        def clean(text: str) -> str:
            cleaned = c4.clean(text)
            if note is not None:
                for line in cleaned.dropped:
                    note(LINE, line)
            return cleaned.text

        steps.append(clean)
    if source.decontaminate and not validation_text and not source.is_chat:
        contamination = _contamination(stamps(_evaluation_files(source)))

        def cut(text: str) -> str:
            if len(text) < LONG or (left := contamination.without(text)) == text:
                return text
            if note is not None:
                note(CUT, f"{len(text) - len(left):,} characters")
            return left

        steps.append(cut)
    if source.mask_personal:
        steps.append(functools.partial(personal.mask, note=note))
    if not steps:
        return None

    def change(text: str) -> str:
        for step in steps:
            text = step(text)
        return text

    return functools.partial(_change_said, change) if source.is_chat else change


def _change_said(change: Change, document: str) -> str:
    """A conversation with each of its texts changed."""

    def walk(value: Any) -> Any:
        if isinstance(value, str):
            return change(value)
        if isinstance(value, list):
            return [walk(each) for each in value]
        if isinstance(value, dict):
            return {key: each if key in _NOT_SPOKEN else walk(each) for key, each in value.items()}
        return value

    conversation = from_document(document)
    changed = {key: each if key == "tools" else walk(each) for key, each in conversation.items()}
    return document if changed == conversation else to_document(changed)


def settings(source: SourceConfig) -> tuple[tuple[str, Any], ...]:
    """The filters' options as (name, value), hashable: ``SourceConfig`` takes them back."""
    values = {field.name: getattr(source, field.name) for field in fields(SourceConfig) if field.name in FILTERS}
    return tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in values.items())


def options(source: SourceConfig) -> tuple[tuple[str, Any], ...]:
    """What the filters let pass and change, as (option, value): for fingerprints. Files and functions by their content.

    Only what is not as usual is added to the first five: positions from before there was a choice stay valid.
    """
    found: list[tuple[str, Any]] = [
        ("min_chars", source.min_chars),
        ("max_chars", source.max_chars),
        ("min_letters", source.min_letters),
        ("script", source.script_key),
        ("min_script", source.min_script),
    ]
    if source.languages:
        found.append(("languages", (tuple(sorted(source.languages)), language.identity())))
    if gopher := _gopher(source):
        found.append(("rules", (gopher, RULES_VERSION)))
    if "c4" in source.rule_sets:
        found.append(("rules", ("c4", c4.VERSION)))
    if source.blocked_words:
        found.append(("blocked_words", blocked.identity(source.blocked_words, blocked.WORDS)))
    if source.blocked_urls:
        found.append(("blocked_urls", (blocked.identity(source.blocked_urls, blocked.URLS), source.url_field)))
    if source.filter:
        found.append(("filter", own.identity(source.filter)))
    if source.decontaminate:
        found.append(("decontaminate", _contamination(stamps(_evaluation_files(source))).identity))
    if source.mask_personal:
        found.append(("mask_personal", personal.VERSION))
    return tuple(found)


def _gopher(source: SourceConfig) -> Rules | None:
    """Which of Gopher's rules count."""
    return "gopher" if "gopher" in source.rule_sets else "repetition" if "repetition" in source.rule_sets else None


def _foreign(text: str, languages: frozenset[str]) -> str | None:
    found = language.language_of(text)
    return None if found in languages else f"languages ({found})"


@functools.lru_cache(maxsize=4)
def _words(path: str, content: str) -> blocked.Words:
    return blocked.read_words(path)


@functools.lru_cache(maxsize=4)
def _urls(path: str, content: str) -> blocked.Urls:
    return blocked.read_urls(path)


def _evaluation_files(source: SourceConfig) -> list[str]:
    return files.expand(list(source.decontaminate), "data.decontaminate")


@functools.lru_cache(maxsize=4)
def _contamination(stamped: tuple[Any, ...]) -> Contamination:
    """The passages of evaluation files: text, or records of any form, with all texts in them."""
    paths = [path for path, _, _ in stamped]
    contamination = Contamination(text for path in paths for text in _texts(path))
    if contamination.texts == contamination.too_short:
        raise UserError(
            f"data.decontaminate: {files.few_names(paths)} hold no text of eight words or more: name the files of the "
            "evaluation"
        )
    return contamination


def _texts(path: str) -> Iterator[str]:
    if files.is_plain(path):
        with open_binary(path) as stream:
            yield stream.read().decode("utf-8", "replace")
        return
    for record in chat_files.read(path):
        if record.error:
            raise UserError(f"data.decontaminate: {record.where}: {record.error}")
        yield from _strings(record.value)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _strings(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _strings(each)
