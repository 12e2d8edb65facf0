"""How much of its local files a position has read, with hashes: a run that resumes compares them with the files.

Files count by what is in them, so that they may be elsewhere, be newer, or have been repaired or continued after the
position. Files that the run has read to their ends are compared as a whole, the one that it is in by its records.

Tested in tests/data/stream/test_read_so_far.py.
"""

import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from slm.data.errors import UserError
from slm.data.progress import Progress
from slm.data.sources import duplicates
from slm.data.sources.corpus import Corpus, CorpusStream, records
from slm.data.sources.plan import Plan, open_whole_corpus
from slm.data.storage import fingerprint

CHUNK = 1 << 20
DIGEST_BYTES = 12


class Place(NamedTuple):
    """How far a source was read: in which epoch, which part of its order of files, and how many of its records."""

    epoch: int
    part: int
    record: int


class Recorder:
    """Knows the stream of a source that is being read, and so how far it was read: ahead of its saved position, which
    is where a shuffled group begins."""

    def __init__(self) -> None:
        self._epoch = 0
        self._stream: CorpusStream[Any] | None = None

    def begin(self, epoch: int, stream: CorpusStream[Any]) -> None:
        """An epoch begins, and with it a stream."""
        self._epoch, self._stream = epoch, stream

    def place(self) -> list[int]:
        """The present ``Place``; empty for a source that is no corpus."""
        return [] if self._stream is None else [self._epoch, *self._stream.place]


class ReadSoFar:
    """What was read of one source's files. Digests are kept, so that asking again reads only what is new."""

    def __init__(self, plan: Plan, order: Callable[[int, int], list[int]]) -> None:
        """``order(epoch, n_files)`` gives the numbers of the files in the order in which an epoch reads them."""
        self._plan = plan
        self._order = order
        self._skipped = duplicates.load(plan) or {}
        self._whole: dict[int, str] = {}
        self._part: tuple[int, _Records] | None = None

    def digests(self, place: Place) -> dict[str, Any]:
        """The digests of all that was read up to the place, JSON-serialisable."""
        n_files = len(self._plan.files)
        order = self._order(place.epoch, n_files)
        read = list(range(n_files)) if place.epoch else order[: place.part]
        for file in read:
            if file not in self._whole:
                self._whole[file] = self._digest_of_file(file)
        found: dict[str, Any] = {"files": n_files, "place": list(place)}
        found["whole"] = [self._whole[file] for file in sorted(read)]
        if not place.epoch and place.part < n_files and place.record:
            found["part"] = self._digest_of_part(order[place.part], place.record)
        return found

    def check(self, saved: dict[str, Any]) -> None:
        """UserError, naming the file, where what was read is not what it was when ``digests`` returned ``saved``."""
        plan, n_files = self._plan, len(self._plan.files)
        if saved["files"] != n_files:
            raise UserError(
                f"{plan.source.label} has {n_files:,} files, and had {saved['files']:,} when the run was saved: name "
                "the same files in the same order, or start a new run"
            )
        place = Place(*saved["place"])
        order = self._order(place.epoch, n_files)
        read = sorted(range(n_files) if place.epoch else order[: place.part])
        progress = Progress(f"{plan.source.label}: comparing what was read")
        sizes = [os.path.getsize(path) for path in plan.files]
        total = max(1, sum(sizes[file] for file in read))
        done = 0
        for file, digest in zip(read, saved["whole"], strict=True):
            # Sizes first: they cost nothing.
            if int(digest.partition(":")[0]) != sizes[file] or self._digest_of_file(file) != digest:
                raise _changed(plan.files[file])
            self._whole[file] = digest
            done += sizes[file]
            progress.update(done, total, f"{done / 1e9:.1f} GB")
        progress.done()
        if "part" in saved and self._digest_of_part(order[place.part], place.record) != saved["part"]:
            raise _changed(plan.files[order[place.part]])

    def _digest_of_part(self, file: int, n_records: int) -> str:
        """The digest of a file's first records; of all of them if it has fewer."""
        if self._part is None or self._part[0] != file or self._part[1].count > n_records:
            self._part = (file, _Records(open_whole_corpus(self._plan), file))
        return self._part[1].digest(n_records) + self._duplicates(file, n_records)

    def _digest_of_file(self, file: int) -> str:
        return _digest_of_file(self._plan.files[file]) + self._duplicates(file, None)

    def _duplicates(self, file: int, n_records: int | None) -> str:
        """Identifies which of the first records are left out as duplicates; empty where none is."""
        listed = self._skipped.get(file)
        if listed is None:
            return ""
        found = listed if n_records is None else listed[listed < n_records]
        return f":{fingerprint(found.tolist())}" if len(found) else ""


class _Records:
    """The hash of a file's records, from the first one on."""

    def __init__(self, corpus: Corpus[str], file: int) -> None:
        self._records: Iterator[Any] = records(corpus.open(file, 0, None))
        self._hash = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self.count = 0

    def digest(self, n_records: int) -> str:
        while self.count < n_records:
            record = next(self._records, None)
            self.count += 1
            content = _bytes_of(record)
            self._hash.update(b"%d:" % len(content))
            self._hash.update(content)
        return self._hash.hexdigest()


def _bytes_of(record: Any) -> bytes:
    """What a record holds, and not where it stands: its content, or a conversation's value."""
    record = getattr(record, "content", getattr(record, "value", record))
    return record if isinstance(record, bytes) else repr(record).encode("utf-8", "surrogatepass")


def _digest_of_file(path: str) -> str:
    """Size and hash of a file."""
    found = hashlib.blake2b(digest_size=DIGEST_BYTES)
    size = 0
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            found.update(chunk)
            size += len(chunk)
    return f"{size}:{found.hexdigest()}"


def _changed(path: str) -> UserError:
    return UserError(
        f"{path} is not what the run has read of it: it (or, with data.dedup, what it repeats) has changed before "
        "the saved position. Put back the file that was there, or start a new run"
    )


def furthest(states: Sequence[dict[str, Any] | None], number: int) -> Place:
    """How far the shards with these states have read the source of this number: the furthest of them."""
    places = [Place(*state["read"][number]) for state in states if state is not None and state["read"][number]]
    return max(places, default=Place(0, 0, 0))


def make(plans: Sequence[Plan], order: Callable[[Plan, int, int], list[int]]) -> list[ReadSoFar | None]:
    """One for each source with local files, None for the others."""
    return [ReadSoFar(plan, functools.partial(order, plan)) if plan.files else None for plan in plans]
