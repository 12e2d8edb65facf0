"""Counts over a source: documents, bytes, tokens, duplicates, and the documents that the filters reject."""

import math
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np

from slm.data.progress import Progress
from slm.data.quality import language
from slm.data.quality.repeats.in_memory import Finder
from slm.data.sources.contents import Sample, unit_hash
from slm.data.sources.corpus import records
from slm.data.sources.documents import TalesStream
from slm.data.sources.filters import make_change, make_filter
from slm.data.sources.passages import middle
from slm.data.sources.plan import Plan, open_whole_corpus

EXAMPLES, EXAMPLE_CHARS = 3, 2000
"""Number of documents with a beginning that is kept, and its most characters."""
BATCH, BATCH_CHARS = 64, 4 << 20  # documents counted together, and their characters


class Statistics:
    """Counts over documents, given in batches. Memory: 8 bytes a document, and what ``finder`` takes."""

    def __init__(self, *, encode: Callable[[str], Any], plan: Plan, finder: Finder | None) -> None:
        self._encode = encode
        self._reason = make_filter(plan.source)
        self._change: Callable[[str], str] = make_change(plan.source, note=self._note) or str
        self.plan = plan
        self._finder = finder
        self.documents = 0
        """Documents that were read; empty ones are not counted."""
        self.left_out: Counter[str] = Counter()
        """Documents that a filter rejects, by the filter's option."""
        self.repeated: Counter[str] = Counter()
        """Exact and near duplicates among the documents that pass the filters."""
        self.rejected: dict[str, list[str]] = {}
        """The beginnings of some documents that a filter rejects or that are repeated, by reason."""
        self.changed: Counter[str] = Counter()
        """Passages that are masked or cut out, by the mark of their kind."""
        self.sample = Sample()
        """Some of the documents, from everywhere in what was read."""
        self.bytes = 0
        """UTF-8 bytes of the documents that are kept: they pass the filters and are no duplicates. The counts below
        are of these documents, too."""
        self.tokens = 0
        """Ids, with the end-of-text token of each document."""
        self.held_out_tokens = 0
        """Tokens of the documents and passages that are in the validation split."""
        self.lengths = array("I")
        """Tokens of each document."""
        self.examples: list[str] = []
        """The beginnings of the first documents."""

    def add(self, texts: list[str], undivided: Collection[str] = ()) -> None:
        """Count ``texts``. A passage may be held out of those in ``undivided``, each a whole plain text file."""
        passed = []
        for text in texts:
            self.documents += 1
            reason = self._reason(text) if self._reason else None
            self.sample.add(0.0, text)
            if reason:
                self.left_out[reason] += 1
                self._reject(reason, text)
            else:
                passed.append(text)
        verdicts = self._finder.add(passed) if self._finder else [""] * len(passed)
        for text, verdict in zip(passed, verdicts, strict=True):
            if verdict:
                self.repeated[verdict] += 1
                self._reject(f"{verdict} duplicates", text)
                continue
            read = self._change(text)
            length = len(self._encode(read)) + 1
            self.bytes += len(read.encode("utf-8", "replace"))
            self.tokens += length
            self.lengths.append(length)
            if len(self.examples) < EXAMPLES:
                self.examples.append(read[:EXAMPLE_CHARS])
            if self.plan.passage and text in undivided and len(text) >= self.plan.divided:
                self.held_out_tokens += len(self._encode(text[middle(text, self.plan.passage)])) + 1
            elif self.plan.held_out or self.plan.also_held_out:
                hashed = unit_hash(text)
                if hashed < self.plan.held_out or hashed in self.plan.also_held_out:
                    self.held_out_tokens += length

    def _reject(self, reason: str, text: str) -> None:
        examples = self.rejected.setdefault(reason, [])
        if len(examples) < EXAMPLES:
            examples.append(text[:EXAMPLE_CHARS])

    def _note(self, kind: str, stood: str) -> None:
        self.changed[kind] += 1

    def languages(self) -> dict[str, int]:
        """Documents of ``sample`` by language, the most frequent first."""
        return language.count(text for *_, text in self.sample.kept)

    def record(self) -> dict[str, Any]:
        """The counts as plain values."""
        lengths = np.frombuffer(self.lengths, dtype=np.uint32) if self.lengths else np.zeros(1, dtype=np.uint32)
        return {
            "documents": self.documents,
            "left_out": dict(self.left_out),
            "exact_duplicates": self.repeated["exact"],
            "near_duplicates": self.repeated["near"],
            "kept": len(self.lengths),
            "bytes": self.bytes,
            "tokens": self.tokens,
            "bytes_per_token": round(self.bytes / max(1, self.tokens - len(self.lengths)), 4),
            "held_out_tokens": self.held_out_tokens,
            "changed": dict(self.changed),
            "document_tokens": {
                name: int(value)
                for name, value in zip(
                    ("min", "p10", "median", "p90", "max"), np.percentile(lengths, (0, 10, 50, 90, 100)), strict=True
                )
            },
            "examples": self.examples,
        }


def read(statistics: Statistics, plan: Plan, *, seed: int, max_docs: int, max_mb: float = math.inf) -> bool:
    """Count the first ``max_docs`` documents of a source, in their natural order, or those in which there are
    ``max_mb`` megabytes that are kept. Returns whether those were all."""
    progress = Progress(plan.source.label)
    documents = _documents(plan, seed)
    batch: list[str] = []
    whole: list[str] = []
    for text, undivided, share in documents:
        batch.append(text)
        if undivided:
            whole.append(text)
        full = len(batch) == BATCH or sum(map(len, batch)) > BATCH_CHARS
        if full or statistics.documents + len(batch) == max_docs:
            statistics.add(batch, whole)
            batch, whole = [], []
            # The count ends with the text or with what was asked for, whichever comes first.
            done = max(share, statistics.documents / max_docs, statistics.bytes / (1e6 * max_mb))
            progress.update(done, 1.0, f"{statistics.documents:,} documents, {statistics.tokens:,} tokens")
        if statistics.documents == max_docs or statistics.bytes >= 1e6 * max_mb:
            progress.done()
            return next(documents, None) is None
    statistics.add(batch, whole)
    progress.done()
    return True


def _documents(plan: Plan, seed: int) -> Iterator[tuple[str, bool, float]]:
    """Documents of both splits: the text, whether it is all of a file's plain text, the fraction of the source read."""
    if plan.source.kind == "tales":
        stories = TalesStream(seed=seed, shard_index=0, num_shards=1, count=None)
        while True:
            yield next(stories), False, 0.0
    undivided = False

    def select(text: str, given: bool) -> str:
        nonlocal undivided
        undivided = given
        return text

    corpus = open_whole_corpus(plan, select)
    n_files = corpus.n_files()
    for file in range(n_files):
        reader = corpus.open(file, 0, None)
        for record in records(reader):
            text = reader.document(record)
            if text is not None:
                yield text, undivided, (file + reader.fraction_read()) / n_files


def histogram(lengths: array, span: tuple[int, int] | None = None, bins: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """The number of tokens in documents of each length: ``(edges[bins + 1], tokens[bins])``, logarithmic bins.

    ``span`` is the shortest and the longest length; by default those of ``lengths``.
    """
    values = np.frombuffer(lengths, dtype=np.uint32).astype(np.float64)
    least, greatest = span or (values.min(), values.max())
    edges = np.geomspace(max(1, least), greatest + 1, bins + 1)
    return edges, np.histogram(values, bins=edges, weights=values)[0]
