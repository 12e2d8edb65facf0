"""Records that cannot be read, and what was replaced in those that can: counted by reason, with the first place."""

import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

from data.errors import one_line

REMEMBERED = 100_000
"""Places that a tally remembers, so that a record that is read again is not counted again; further ones may be."""


class BadRecordError(Exception):
    """A record, or the rest of a file, that cannot be read.

    ``reason`` says in general what is wrong and is what records are counted by ("not a line of JSON"); ``detail`` is
    of this record. Where it stands is an ``offset`` in bytes into the file's (decompressed) content, from which the
    line is counted, or a ``place`` in words ("row 7").
    """

    def __init__(self, reason: str, *, detail: str = "", place: str = "", offset: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = one_line(detail)
        self.place = place
        self.offset = offset


class Found(NamedTuple):
    """What a tally knows of one reason."""

    count: int
    first: str
    """The first place, with the file, and the detail there."""


class Tally:
    """Counts by reason, over all files that this process reads. A place counts once, however often it is read."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Found] = {}  # (path, reason)
        self._seen: set[tuple[str, int, str]] = set()
        self._said: set[str] = set()
        self._news: list[tuple[str, str, int, str, int]] = []

    def add(self, reason: str, *, path: str, position: int, first: str, count: int = 1) -> None:
        """Count a record of ``path`` at ``position`` (any number that tells places apart)."""
        place = (path, position, reason)
        if place in self._seen:
            return
        if len(self._seen) < REMEMBERED:
            self._seen.add(place)
        before = self._found.get((path, reason), Found(0, first))
        self._found[path, reason] = Found(before.count + count, before.first)
        self._news.append((reason, path, position, first, count))

    def record(self, paths: Iterable[str] | None = None) -> dict[str, Found]:
        """Counts and first places by reason, of these files or of all."""
        wanted = None if paths is None else set(paths)
        total: dict[str, Found] = {}
        for (path, reason), found in self._found.items():
            if wanted is None or path in wanted:
                before = total.get(reason, Found(0, found.first))
                total[reason] = Found(before.count + found.count, before.first)
        return total

    def news(self) -> list[tuple[str, str, int, str, int]]:
        """What was counted since the last call, for ``take``: a worker's tally is sent to its parent so."""
        news, self._news = self._news, []
        return news

    def take(self, news: list[tuple[str, str, int, str, int]]) -> None:
        """Count what another process counted."""
        for reason, path, position, first, count in news:
            self.add(reason, path=path, position=position, first=first, count=count)

    def report(self, *, file: Any = None) -> None:
        """Print one line for each reason that has not been reported in this process."""
        for reason, found in self.record().items():
            if reason not in self._said:
                self._said.add(reason)
                print(line(reason, found), file=file or sys.stderr, flush=True)


def line(reason: str, found: Found) -> str:
    """``12 records left out ...``: one line for people."""
    return f"{found.count:,} x {reason}; the first: {found.first}"


TALLY = Tally()
"""That of this process."""
