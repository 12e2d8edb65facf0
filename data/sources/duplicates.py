"""Documents that repeat earlier ones: found in one pass over the sources, and listed so that streams skip them.

Two documents are exact duplicates if their words are the same (case, white space and Unicode composition aside). They
are near duplicates if the sets of their five-word sequences overlap by ``data.dedup_threshold`` (Jaccard). Near ones
are found by MinHash and locality-sensitive hashing (Broder 1997; Indyk and Motwani 1998) as the ``rensa`` library
implements them: 128 hashes in 16 or 32 bands, candidates compared by their sketches. This finds nearly every pair well
above the threshold, about half of the pairs right at it, and none far below. The first of several duplicates stays.
"""

import functools
import hashlib
import io
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from slm.data.config import DataConfig
from slm.data.errors import UserError
from slm.data.progress import Progress
from slm.data.quality.words import WORD, normalized
from slm.data.sources.corpus import Corpus, records
from slm.data.sources.filters import make_filter, options
from slm.data.sources.plan import Plan, open_whole_corpus
from slm.data.storage import fingerprint, locked, read_checked, stamps, write_checked

VERSION = 1
N_HASHES = 128
FEW_BANDS, MANY_BANDS = 16, 32  # thresholds of 0.75 and more need only half the bands, and half the memory
SHINGLE = 5  # words
BATCH, BATCH_CHARS = 256, 4 << 20  # documents given to the library at once, and their characters

WITHOUT_LIST = "data.dedup=none"
"""The option with which no list of duplicates is needed."""

Verdict = Literal["", "exact", "near"]


class Finder:
    """Decides for each document in turn whether it repeats an earlier one.

    Memory per document: about 90 bytes for ``exact``; for ``near`` 2.2 KB, or 4.6 KB below a threshold of 0.75.
    """

    def __init__(self, mode: Literal["exact", "near"], threshold: float) -> None:
        self._seen: set[int] = set()
        self._near: Any = None
        self._number = 0
        if mode == "near":
            from rensa import RMinHashDeduplicator

            self._near = RMinHashDeduplicator(
                threshold=threshold,
                num_perm=N_HASHES,
                use_lsh=True,
                num_bands=FEW_BANDS if threshold >= 0.75 else MANY_BANDS,
                seed=1,
            )

    def add(self, texts: Sequence[str]) -> list[Verdict]:
        """A verdict on each text: ``""`` for one that repeats no earlier text."""
        verdicts: list[Verdict] = []
        fresh: list[tuple[int, str]] = []
        for index, text in enumerate(texts):
            plain = normalized(text)
            digest = _digest(plain)
            repeated = digest in self._seen
            verdicts.append("exact" if repeated else "")
            if not repeated:
                self._seen.add(digest)
                fresh.append((index, plain))
        if self._near is not None:
            entries = [(str(self._number + i), shingles(plain)) for i, (_, plain) in enumerate(fresh)]
            self._number += len(fresh)
            for (index, _), kept in zip(fresh, self._near.add_pairs(entries), strict=True):
                if not kept:
                    verdicts[index] = "near"
        return verdicts

    def add_signature(self, digest: int, state: bytes) -> Verdict:
        """``add`` for one text by its ``signature``."""
        if digest in self._seen:
            return "exact"
        self._seen.add(digest)
        if self._near is None:
            return ""
        from rensa import RMinHash

        sketch = RMinHash(num_perm=N_HASHES, seed=1)
        sketch.__setstate__(state)
        self._number += 1
        return "" if self._near.add(str(self._number - 1), sketch) else "near"


def signature(text: str, mode: Literal["exact", "near"]) -> tuple[int, bytes]:
    """What a ``Finder`` has to know of a text: the digest of its words, and for ``near`` its sketch of 700 bytes."""
    plain = normalized(text)
    if mode == "exact":
        return _digest(plain), b""
    from rensa import RMinHash

    sketch = RMinHash(num_perm=N_HASHES, seed=1)
    sketch.update(shingles(plain))
    return _digest(plain), sketch.__getstate__()


def _digest(plain: str) -> int:
    return int.from_bytes(hashlib.blake2b(plain.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def shingles(plain: str) -> list[str]:
    """The sequences of five words; a shorter text is one sequence."""
    words = WORD.findall(plain)
    if len(words) < SHINGLE:
        return [" ".join(words) or plain.encode("utf-8", "replace").decode()]
    return list(map(" ".join, zip(*(words[i:] for i in range(SHINGLE)), strict=False)))


def list_duplicates(config: DataConfig, plans: list[Plan]) -> list[Plan]:
    """The plans, each with the list of duplicates among the documents of all of them; made if it is not in the cache.

    ``plans`` are those of all sources and both splits. The first of several duplicates is kept, so validation text
    should come first. At most ``data.dedup_max_docs`` documents are compared. The embedded stories are not compared:
    no two are the same.
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
            _make(path, config, config.dedup, corpora)
    return [replace(plan, duplicates=str(path), listed_as=name) for plan, name in zip(plans, names, strict=True)]


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
    progress = Progress(f"looking for {mode} duplicates (once)")
    finder = Finder(mode, config.dedup_threshold)
    lists: dict[str, np.ndarray] = {}
    counts = {"documents": 0, "exact": 0, "near": 0}
    cut = False
    for key, plan in corpora.items():
        found = (array("Q"), array("Q"))  # files, records
        for batch, done, total in _batches(plan, open_whole_corpus(plan)):
            left = config.dedup_max_docs - counts["documents"]
            cut = cut or len(batch) > left
            for (file, record, _), verdict in zip(batch, finder.add([text for *_, text in batch[:left]]), strict=False):
                counts["documents"] += 1
                if verdict:
                    counts[verdict] += 1
                    found[0].append(file)
                    found[1].append(record)
            note = (
                f"{plan.source.label}: {counts['documents']:,} documents, {counts['exact'] + counts['near']:,} repeated"
            )
            progress.update(done, total, note)
            if cut:
                break
        lists[key] = np.array([found[0], found[1]], dtype=np.uint64).reshape(2, -1)
    progress.done()
    write(path, lists)
    report(counts, cut=cut)


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
    content = read_checked(path)
    if content is None:
        return None
    with np.load(io.BytesIO(content)) as file:
        lists = {}
        for key in file.files:
            numbers, skipped = file[key]  # of files and of their records
            lists[key] = {int(each): np.sort(skipped[numbers == each]) for each in np.unique(numbers)}
    return lists
