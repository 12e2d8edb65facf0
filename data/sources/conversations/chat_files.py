"""Conversations from local files and from rows of a data set, as documents of ``slm.data.chat.formats``.

A record that is no conversation is left out, or ends the run (``data.on_bad``).
``slm.data.sources.conversations.chat_records`` reads the files.
"""

import functools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from slm.data.chat.formats import TITLES, BadRecordError, Format, Read, read_record, to_document
from slm.data.errors import UserError
from slm.data.sources.conversations.chat_records import Record, file_kind, read
from slm.data.sources.corpus import SMALL_CORPUS, Reader
from slm.data.storage import stamps

NAMED_FIELDS = 8
"""The most fields that one line names."""

Columns = tuple[tuple[str, str], ...]
"""``data.columns``, as a key for caches."""


def to_conversation(record: Record, *, stop: bool, columns: Columns = ()) -> tuple[Format, str] | None:
    """The record's format and document; None where it is no conversation. With ``stop`` that is a UserError."""
    try:
        found = _read(record, dict(columns))
    except BadRecordError as error:
        if stop:
            raise UserError(
                f"{record.where}: {error}; correct it, or leave such records out (data.on_bad=skip)"
            ) from None
        return None
    return found.kind, to_document(found.conversation)


def _read(record: Record, columns: Mapping[str, str]) -> Read:
    if record.error:
        raise BadRecordError(record.error)
    return read_record(record.value, columns)


class ChatFileCorpus:
    """Files of conversations. Every shard reads all of them and takes its own records."""

    def __init__(self, paths: tuple[str, ...], *, stop: bool, columns: Columns = ()) -> None:
        self._paths = paths
        self._stop = stop
        self._columns = columns

    def n_files(self) -> int:
        return len(self._paths)

    def splits_by_file(self, n_shards: int) -> bool:
        return False

    def open(self, file: int, record: int, position: Any) -> Reader[str]:
        return _ChatReader(self._paths[file], record, self._stop, self._columns)


class _ChatReader:
    def __init__(self, path: str, record: int, stop: bool, columns: Columns) -> None:
        self._records = read(path, record)
        self._stop = stop
        self._columns = columns

    def __next__(self) -> Record:
        return next(self._records)

    def document(self, record: Record) -> str | None:
        found = to_conversation(record, stop=self._stop, columns=self._columns)
        return None if found is None else found[1]

    def position(self) -> Any:
        return None  # the record's number is enough

    def fraction_read(self) -> float:
        return 0.0


@dataclass
class Findings:
    """What is in files of conversations."""

    formats: Counter[Format] = field(default_factory=Counter)
    bad: int = 0
    first_bad: str = ""
    """The first record that is no conversation, with its file and line, and why."""
    unread: list[str] = field(default_factory=list)
    """Where files are damaged: what stands behind these places is not read."""
    unused: Counter[str] = field(default_factory=Counter)
    """Fields that say something and are not used, with the number of records or messages that have them."""
    changed: Counter[str] = field(default_factory=Counter)
    """What was changed or guessed, in words."""
    uses: Counter[str] = field(default_factory=Counter)
    """Conversations with ``tools``, ``calls`` and ``results``."""
    complete: bool = True
    """Whether everything was read."""

    @property
    def conversations(self) -> int:
        """Records that are conversations."""
        return self.formats.total()

    def add(self, record: Record, *, stop: bool, columns: Columns = ()) -> int:
        """Count a record. Returns the characters of its document."""
        try:
            found = _read(record, dict(columns))
        except BadRecordError as error:
            if stop:
                to_conversation(record, stop=True, columns=columns)
            self.bad += 1
            self.first_bad = self.first_bad or f"{record.where}: {error}"
            if record.last:
                self.unread.append(record.where)
            return 0
        self.formats[found.kind] += 1
        self.unused += found.reading.unused
        self.changed += found.reading.changed
        messages = found.conversation["messages"]
        self.uses["tools"] += "tools" in found.conversation
        self.uses["calls"] += any(each.get("tool_calls") for each in messages)
        self.uses["results"] += any(each["role"] == "tool" for each in messages)
        return len(to_document(found.conversation))

    def line(self, *, pairs: bool = False) -> str:
        """One line on what was found. ``pairs``: both answers of preference pairs are used."""
        more = {} if pairs else {"preference": " (the chosen answers are learned)"}
        found = self.formats.most_common()
        kinds = ", ".join(f"{count:,} {TITLES[kind]}{more.get(kind, '')}" for kind, count in found)
        text = f"conversations: {kinds or 'none'}" + ("" if self.complete else ", and more behind them")
        if self.bad:
            text += f"; left out {self.bad:,} bad record{'s' if self.bad > 1 else ''}, the first: {self.first_bad}"
        if self.unread:
            text += f"; not read: what stands behind {', '.join(self.unread)}"
        if self.unused:
            named = self.unused.most_common(NAMED_FIELDS)
            text += "; fields that are not used: " + ", ".join(f"{name} ({count:,})" for name, count in named)
            text += f" and {len(self.unused) - len(named)} more" if len(self.unused) > len(named) else ""
        if self.changed:
            text += "; changed: " + ", ".join(f"{what} ({count:,})" for what, count in self.changed.most_common())
        return text


def check_pairs(paths: tuple[str, ...], columns: Columns = ()) -> None:
    """UserError where no record of the files is a preference pair."""
    findings = inspect(paths, columns=columns)
    if findings.formats and not findings.formats["preference"]:
        raise UserError(
            f"there is no preference pair in the files ({findings.line()}): preference.loss needs records with prompt, "
            "chosen and rejected"
        )


def inspect(paths: tuple[str, ...], *, stop: bool = False, columns: Columns = ()) -> Findings:
    """What the files hold, up to ``SMALL_CORPUS`` of conversations.

    Raises UserError where none of the records is a conversation, and with ``stop`` at the first that is none.
    """
    return _inspect(stamps(paths), stop, columns)


@functools.lru_cache(maxsize=8)
def _inspect(stamped: tuple[Any, ...], stop: bool, columns: Columns) -> Findings:
    records = (record for path, *_ in stamped for record in read(path))
    findings = of_records(records, stop=stop, columns=columns)
    if not findings.conversations:
        tables = any(file_kind(path) == "table" for path, *_ in stamped)
        hint = "; the first line of a table names its columns, such as question,answer" if tables else ""
        raise UserError(
            f"there is no conversation in the files; the first record is bad: {findings.first_bad}{hint}"
            if findings.bad
            else f"there is no conversation in the files: they hold no record{hint}"
        )
    return findings


def of_records(records: Iterable[Record], *, stop: bool, columns: Columns) -> Findings:
    """What records hold, up to ``SMALL_CORPUS`` of conversations. The rest is read during training."""
    findings, size = Findings(), 0
    for record in records:
        size += findings.add(record, stop=stop, columns=columns)
        if size > SMALL_CORPUS:
            findings.complete = False
            break
    return findings
