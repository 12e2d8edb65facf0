"""Documents that repeat earlier ones: found in one pass over the sources, and listed so that streams skip them.

``slm.data.quality.repeats`` decides what repeats what.
"""

import contextlib
import functools
import io
import os
import shutil
import zipfile
from collections.abc import Iterator, Mapping
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
from slm.data.storage import NoRoomError, fingerprint, is_intact, locked, stamps, write_checked, write_checked_file

VERSION = 1
BATCH, BATCH_CHARS = 256, 4 << 20  # documents looked at together, and their characters
_PLACE = np.dtype([("file", "<u4"), ("record", "<u8")])
_CHUNK = 1 << 20  # documents whose places are looked up in one go

WITHOUT_LIST = "data.dedup=none"
"""The option with which no list of duplicates is needed."""


def list_duplicates(config: DataConfig, plans: list[Plan]) -> list[Plan]:
    """The plans, each with the list of duplicates among the documents of all of them; made if it is not in the cache.

    ``plans`` are those of all sources and both splits. The first of several duplicates is kept, so validation text
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
    others that look the same to it (``split -b`` makes such parts), a number after it. The first has none, so that
    lists from before there were numbers stay valid."""
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


def _make(path: Path, config: DataConfig, mode: Literal["exact", "near"], corpora: dict[str, Plan]) -> None:
    folder = path.with_suffix(".work")
    with _on_disk(folder, mode):
        finder = DiskFinder(folder, mode, config.dedup_threshold)
    try:
        _look(path, config, mode, corpora, folder, finder)
    finally:
        finder.close()


def _look(
    path: Path,
    config: DataConfig,
    mode: Literal["exact", "near"],
    corpora: dict[str, Plan],
    folder: Path,
    finder: DiskFinder,
) -> None:
    """Write the list of duplicates; ``folder`` is for what is needed until then."""
    progress = Progress(f"looking for {mode} duplicates (once)")
    most = config.dedup_max_docs
    first: dict[str, int] = {}  # of each corpus: the number of its first document
    cut = False
    with open(folder / "places", "wb") as places:
        for key, plan in corpora.items():
            first[key] = finder.documents
            for batch, done, total in _batches(plan, open_whole_corpus(plan)):
                left = len(batch) if most is None else most - finder.documents
                cut = cut or len(batch) > left
                with _on_disk(folder, mode):
                    finder.add([text for *_, text in batch[:left]])
                    np.array([each[:2] for each in batch[:left]], dtype=_PLACE).tofile(places)
                progress.update(done, total, f"{plan.source.label}: {finder.documents:,} documents")
                if cut:
                    break
            if cut:
                break
    with _on_disk(folder, mode):
        verdicts = finder.verdicts()
        counts = np.zeros(3, dtype=np.int64)
        for start in range(0, len(verdicts), _CHUNK):
            counts += np.bincount(verdicts[start : start + _CHUNK], minlength=3)
        ends = [*list(first.values())[1:], finder.documents]
        lists = {
            key: _places(folder, verdicts, start, end) for (key, start), end in zip(first.items(), ends, strict=True)
        }
        for key in corpora:
            lists.setdefault(key, np.zeros((2, 0), dtype=np.uint64))
        np.savez(folder / "list.npz", **lists)  # type: ignore[arg-type]  # numpy's stub takes any of ** for allow_pickle
    progress.done()
    write_checked_file(path, folder / "list.npz", without=WITHOUT_LIST)
    report({"documents": finder.documents, "exact": int(counts[EXACT]), "near": int(counts[NEAR])}, cut=cut)


def write(path: Path, lists: dict[str, np.ndarray]) -> None:
    """Write a list of duplicates: for each corpus, by its name, numbers of files and of their records, [2, n]."""
    buffer = io.BytesIO()
    np.savez(buffer, **lists)  # type: ignore[arg-type]  # numpy's stub takes any of ** for allow_pickle
    write_checked(path, buffer.getvalue(), without=WITHOUT_LIST)


def report(counts: Mapping[str, int], *, cut: bool) -> None:
    """Print what was found. ``cut``: whether there are more documents than may be compared."""
    print(
        f"{counts['documents']:,} documents compared: {counts['exact']:,} exact and {counts['near']:,} near duplicates "
        "are left out" + ("; later ones are not compared (data.dedup_max_docs)" if cut else ""),
        flush=True,
    )


@contextlib.contextmanager
def _on_disk(folder: Path, mode: str) -> Iterator[None]:
    """Turns a full disk into one line."""
    try:
        yield
    except OSError as error:
        disk = {"exact": "25 bytes", "near": "0.7 to 0.9 KB"}[mode]
        raise NoRoomError(
            f"{folder} cannot be written ({error.strerror or error}): looking for {mode} duplicates takes {disk} of "
            f"disk for each document while it lasts: make room, name another folder with data.cache_dir=DIR, or add "
            f"{WITHOUT_LIST}"
        ) from error


def _places(folder: Path, verdicts: np.ndarray, start: int, end: int) -> np.ndarray:
    """Of a corpus, whose documents have the numbers from ``start`` to ``end``, those that are repeated: files and
    records, ``np.uint64[2, n]``, in a file."""
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
