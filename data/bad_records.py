"""Records that cannot be read, and what is replaced in those that can: counted by reason, with the first place."""

import atexit
import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from slm.data.errors import excerpt

REMEMBERED = 100_000
"""Places that a tally remembers, so that a record that is read again is not counted again; further ones may be."""
LEFT_OUT, REPLACED = "left out (data.on_bad=skip)", "replaced by U+FFFD"


class BadRecordError(Exception):
    """A record, or the rest of a file, that cannot be read. Records are counted by the ``reason``."""

    def __init__(
        self,
        reason: str,
        *,
        detail: object = "",
        advice: str = "",
        offset: int | None = None,
        line: int | None = None,
        place: str = "",
    ) -> None:
        """``reason``: what is wrong, as of any record ("not a line of JSON"); ``detail``: what is wrong with this one;
        ``advice``: what to do. The place is one of three: an ``offset`` in bytes into the decompressed file, from which
        the line is counted, a ``line``, or words ("row 7")."""
        super().__init__(reason)
        self.reason = reason
        self.detail = excerpt(detail)
        self.advice = advice
        self.offset, self.line, self.place = offset, line, place


@dataclass(frozen=True)
class Found:
    """What a tally knows of one reason."""

    count: int
    first: str
    """The first place, with its file, and what is wrong there."""


@dataclass(frozen=True)
class News:
    """One count, as a worker process sends it to its parent."""

    kind: str
    reason: str
    path: str
    position: int
    first: str
    """Empty where the reason is known of this file."""
    count: int


class Tally:
    """Counts by reason over all files that this process reads. A place counts once, however often it is read."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str], Found] = {}  # by kind, reason and path
        self._seen: set[tuple[str, str, str, int]] = set()
        self._reported: dict[tuple[str, str], int] = {}
        self._news: list[News] = []

    def add(
        self, reason: str, *, path: str, position: int, first: Callable[[], str], count: int = 1, kind: str = LEFT_OUT
    ) -> None:
        """Count the record of ``path`` at ``position`` (any number that tells places apart).

        ``first()`` describes the place; it is called only for a file's first record with the reason.
        """
        path = os.path.abspath(path)  # which is also what the texts that are kept are known by
        key, place = (kind, reason, path), (kind, reason, path, position)
        if place in self._seen:
            return
        if len(self._seen) < REMEMBERED:
            self._seen.add(place)
        before = self._found.get(key)
        description = first() if before is None else ""
        self._found[key] = Found(before.count + count, before.first) if before else Found(count, description)
        if len(self._news) < REMEMBERED:
            self._news.append(News(kind, reason, path, position, description, count))

    def record(self, paths: Iterable[str] | None = None, kind: str = LEFT_OUT) -> dict[str, Found]:
        """Counts and first places by reason: of these files or of all, of what is left out or what is replaced."""
        wanted = None if paths is None else set(map(os.path.abspath, paths))
        total: dict[str, Found] = {}
        for (its_kind, reason, path), found in self._found.items():
            if its_kind == kind and (wanted is None or path in wanted):
                before = total.get(reason, Found(0, found.first))
                total[reason] = Found(before.count + found.count, before.first)
        return total

    def news(self) -> list[News]:
        """What was counted since the last call: a worker sends it to its parent, which calls ``take``."""
        news, self._news = self._news, []
        return news

    def take(self, news: Iterable[News]) -> None:
        """Count what another process counted."""
        for each in news:
            self.add(
                each.reason,
                path=each.path,
                position=each.position,
                first=lambda first=each.first or each.path: first,  # type: ignore[misc]  # bound here, not later
                count=each.count,
                kind=each.kind,
            )

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """Inside, the tally counts from nothing, and afterwards it knows what it knew before."""
        before = self.__dict__.copy()
        self.__init__()  # type: ignore[misc]
        try:
            yield
        finally:
            self.__dict__.update(before)

    def report(self, *, final: bool = False) -> None:
        """Print a line for each reason that has none yet; at the end (``final``) also for counts that have grown."""
        for kind in (LEFT_OUT, REPLACED):
            for reason, found in self.record(kind=kind).items():
                reported = self._reported.get((kind, reason), 0)
                if not reported or (final and found.count > reported):
                    self._reported[kind, reason] = found.count
                    print(_line(kind, reason, found), file=sys.stderr, flush=True)


def _line(kind: str, reason: str, found: Found) -> str:
    return f"text: {found.count:,} {kind}: {reason}; the first: {found.first}"


TALLY = Tally()
"""This process's tally, which prints at the end what it has not printed before."""
atexit.register(TALLY.report, final=True)
