"""Documents that repeat earlier ones: found in one pass over the sources, and listed so that streams skip them.

``slm.data.quality.repeats`` decides what repeats what.
"""

import contextlib
import functools
import os
import shutil
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np

from slm.data.config import DataConfig
from slm.data.errors import UserError
from slm.data.progress import Progress
from slm.data.quality.repeats.on_disk import EXACT, FRESH, NEAR, DiskFinder
from slm.data.sources.corpus import Corpus, records
from slm.data.sources.filters import make_filter, options
from slm.data.sources.plan import Plan, open_whole_corpus
from slm.data.storage import NoRoomError, fingerprint, is_intact, locked, stamps, write_checked_file

VERSION = 1
BATCH, BATCH_CHARS = 256, 4 << 20  # documents looked at together, and their characters
Mode = Literal["exact", "near"]
_PLACE = np.dtype([("file", "<u4"), ("record", "<u8")])
_CHUNK = 1 << 20  # number of documents that are looked up in one go

WITHOUT_LIST = "data.dedup=none"
"""The option with which no list of duplicates is needed."""


def list_duplicates(config: DataConfig, plans: list[Plan]) -> list[Plan]:
    """The plans, each with the list of duplicates among the documents of all of them; made if it is not in the cache.

    ``plans``: all sources' plans, of both splits. The first of several duplicates is kept, so validation text
    should come first. The embedded stories are not compared: no two are the same.
    """
    assert config.dedup != "none"
    names = names_of(plans)
    corpora: dict[str, Plan] = {}
    for plan, name in zip(plans, names, strict=True):
        if plan.source.kind not in ("tales", "story_chat") and plan.prepared is None:
            corpora.setdefault(name, plan)
    texts = [(name, stamps(plan.files), options(plan.source)) for name, plan in corpora.items()]
    key = (VERSION, config.dedup, config.dedup_threshold, config.dedup_max_docs, texts)
    path = config.cache_folder / "duplicates" / f"{fingerprint(key)}.npz"
    with locked(path.with_suffix(".lock"), without=WITHOUT_LIST):
        if _read(path) is None:
            _remove_left_files(path.parent)
            _make(path, config, config.dedup, corpora)
    return [replace(plan, duplicates=str(path), listed_as=name) for plan, name in zip(plans, names, strict=True)]


def _remove_left_files(folder: Path) -> None:
    """Remove what processes left that were ended while they made a list: it may be as large as a disk."""
    from filelock import FileLock, Timeout

    for left in folder.glob("*.work"):
        with contextlib.suppress(Timeout, OSError), FileLock(left.with_suffix(".lock"), timeout=0):
            shutil.rmtree(left, ignore_errors=True)


def names_of(plans: list[Plan]) -> list[str]:
    """What each plan's corpus is called in the list: ``Plan.corpus``, which knows names and sizes of files, and for
    others that look the same to it (``split -b`` makes such parts), a number after it."""
    found: dict[str, list[tuple[str, ...]]] = {}
    names = []
    for plan in plans:
        paths = tuple(os.path.realpath(path) for path in plan.files)
        alike = found.setdefault(plan.corpus, [])
        if paths not in alike:
            alike.append(paths)
        number = alike.index(paths)
        names.append(f"{plan.corpus}+{number}" if number else plan.corpus)
    return names


def _make(path: Path, config: DataConfig, mode: Mode, corpora: dict[str, Plan]) -> None:
    progress = Progress(f"looking for {mode} duplicates (once)")
    with Comparison(path.with_suffix(".work"), mode, config.dedup_threshold, most=config.dedup_max_docs) as found:
        for key, plan in corpora.items():
            found.begin(key)
            if found.is_full:
                continue
            for batch, done, total in _batches(plan, open_whole_corpus(plan)):
                found.add([each[:2] for each in batch], texts=[text for *_, text in batch])
                progress.update(done, total, f"{plan.source.label}: {found.documents:,} documents")
                if found.is_full:
                    break
        found.write(path)
        progress.done()
        found.report()


class Comparison:
    """Documents of several corpora compared on disk, and the list of those that repeat earlier ones."""

    def __init__(self, folder: Path, mode: Mode, threshold: float, *, most: int | None = None) -> None:
        """``folder`` is for what is needed until the list is there. ``most``: documents that are compared; None: all.
        Methods raise ``NoRoomError`` where the disk is full."""
        self._folder, self._mode, self._most = folder, mode, most
        self._first: dict[str, int] = {}  # of each corpus: the number of its first document
        self._counts = np.zeros(3, dtype=np.int64)
        self.is_full = False
        """Whether there were more documents than are compared."""
        with self._on_disk():
            self._finder = DiskFinder(folder, mode, threshold)
            self._places = open(folder / "places", "wb")  # noqa: SIM115  # closed in ``write`` and at the end

    def __enter__(self) -> "Comparison":
        return self

    def __exit__(self, *_: object) -> None:
        self._places.close()
        self._finder.close()

    @property
    def documents(self) -> int:
        """How many were added."""
        return self._finder.documents

    def begin(self, corpus: str) -> None:
        """The documents that follow are of this corpus."""
        self._first[corpus] = self.documents

    def add(
        self,
        places: Sequence[tuple[int, int]] | np.ndarray,
        *,
        texts: Sequence[str] | None = None,
        digests: np.ndarray | None = None,
        sketches: np.ndarray | None = None,
    ) -> None:
        """Add documents by their places, (file, record) each, and their texts, or what ``slm.data.quality.repeats``
        makes of these: ``np.uint64[n]``, and for ``near`` ``np.uint32[n, 128]``."""
        left = len(places) if self._most is None else self._most - self.documents
        self.is_full = self.is_full or len(places) > left
        with self._on_disk():
            if texts is not None:
                self._finder.add(texts[:left])
            elif digests is not None:
                self._finder.add_sketches(digests[:left], None if sketches is None else sketches[:left])
            np.array([tuple(each) for each in places[:left]], dtype=_PLACE).tofile(self._places)

    def write(self, path: Path) -> None:
        """Compare all, and write the list. Nothing is added after it."""
        self._places.close()
        with self._on_disk():
            verdicts = self._finder.verdicts()
            for start in range(0, len(verdicts), _CHUNK):
                self._counts += np.bincount(verdicts[start : start + _CHUNK], minlength=3)
            ends = [*list(self._first.values())[1:], self.documents]
            lists = {
                key: _places(self._folder, verdicts, start, end)
                for (key, start), end in zip(self._first.items(), ends, strict=True)
            }
            np.savez(self._folder / "list.npz", **lists)  # type: ignore[arg-type]  # numpy's stub takes any of ** for allow_pickle
        write_checked_file(path, self._folder / "list.npz", without=WITHOUT_LIST)

    def report(self) -> None:
        """Print what was found."""
        print(
            f"{self.documents:,} documents compared: {self._counts[EXACT]:,} exact and {self._counts[NEAR]:,} near "
            "duplicates are left out" + ("; later ones are not compared (data.dedup_max_docs)" if self.is_full else ""),
            flush=True,
        )

    @contextlib.contextmanager
    def _on_disk(self) -> Iterator[None]:
        """Turns a full disk into one line."""
        try:
            yield
        except OSError as error:
            disk = {"exact": "25 bytes", "near": "0.7 to 0.9 KB"}[self._mode]
            raise NoRoomError(
                f"{self._folder} cannot be written ({error.strerror or error}): looking for {self._mode} duplicates "
                f"takes {disk} of disk for each document while it lasts: make room, name another folder with "
                f"data.cache_dir=DIR, or add {WITHOUT_LIST}"
            ) from error


def _places(folder: Path, verdicts: np.ndarray, start: int, end: int) -> np.ndarray:
    """The repeated documents of a corpus, among those with the numbers from ``start`` to ``end``: files and records,
    ``np.uint64[2, n]``, in a file."""
    n = sum(int((verdicts[at : min(end, at + _CHUNK)] != FRESH).sum()) for at in range(start, end, _CHUNK))
    if not n:
        return np.zeros((2, 0), dtype=np.uint64)
    found = np.memmap(folder / f"list-{start}", dtype=np.uint64, mode="w+", shape=(2, n))
    filled = 0
    with open(folder / "places", "rb") as file:
        file.seek(start * _PLACE.itemsize)
        for at in range(start, end, _CHUNK):
            repeated = verdicts[at : min(end, at + _CHUNK)] != FRESH
            places = np.fromfile(file, dtype=_PLACE, count=len(repeated))[repeated]
            found[0, filled : filled + len(places)] = places["file"]
            found[1, filled : filled + len(places)] = places["record"]
            filled += len(places)
    return found


def _batches(plan: Plan, corpus: Corpus[str]) -> Iterator[tuple[list[tuple[int, int, str]], float, int]]:
    """Documents as (file, record, text) in their natural order, with the files done (also in part) and all files."""
    reason = make_filter(plan.source, validation_text=plan.is_validation_text)
    batch: list[tuple[int, int, str]] = []
    chars = 0
    n_files = corpus.n_files()
    for file in range(n_files):
        reader = corpus.open(file, 0, None)
        for number, record in enumerate(records(reader)):
            text = reader.document(record)
            if text is not None and (reason is None or reason(text) is None):
                batch.append((file, number, text))
                chars += len(text)
            if len(batch) == BATCH or chars > BATCH_CHARS:
                yield batch, file + reader.fraction_read(), n_files
                batch, chars = [], 0
    yield batch, n_files, n_files


@functools.lru_cache(maxsize=4)
def _lists(path: str) -> dict[str, dict[int, np.ndarray]]:
    lists = _read(Path(path))
    if lists is None:
        raise UserError(
            f"the list of duplicates {path} is missing or damaged: run the same command again to make it again"
        )
    return lists


def load(plan: Plan) -> dict[int, np.ndarray]:
    """The records of the plan's corpus to leave out, none without a list: for each file their sorted numbers."""
    return _lists(plan.duplicates).get(plan.listed_as, {}) if plan.duplicates else {}


def _read(path: Path) -> dict[str, dict[int, np.ndarray]] | None:
    """The lists, which stay in their file: every process looks at the same copy. None if it is missing or damaged."""
    if not is_intact(path):
        return None
    with zipfile.ZipFile(path) as members, open(path, "rb") as file:
        return {
            member.filename.removesuffix(".npy"): _by_file(_mapped(path, file, member.header_offset))
            for member in members.infolist()
        }


def _mapped(path: Path, file: BinaryIO, header: int) -> np.ndarray:
    """An array of a file that ``np.savez`` made, as it lies there."""
    file.seek(header + 26)
    lengths = np.fromfile(file, dtype="<u2", count=2)  # of the name and of the extra fields
    file.seek(int(lengths.sum()), os.SEEK_CUR)
    np.lib.format.read_magic(file)
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    if 0 in shape:
        return np.zeros(shape, dtype=dtype)
    return np.asarray(np.memmap(path, dtype=dtype, mode="r", offset=file.tell(), shape=shape))


def _by_file(places: np.ndarray) -> dict[int, np.ndarray]:
    """The records by file, of places in order of files and records."""
    files, numbers = places
    found: dict[int, np.ndarray] = {}
    at = 0
    while at < len(files):
        end = int(np.searchsorted(files, files[at], side="right"))
        found[int(files[at])] = numbers[at:end]
        at = end
    return found
