"""What a source holds: documents, bytes, tokens, duplicates, and what the filters leave out. Pure counting."""

from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from data.progress import Progress
from data.sources.duplicates import Finder
from data.sources.filters import make_filter
from data.sources.plan import Plan, TalesStream, hash_place, open_corpus

BATCH = 64


class Statistics:
    """Counts over documents, given in batches. Memory: 8 bytes a document, and what ``finder`` takes."""

    def __init__(self, *, encode: Callable[[str], Any], plan: Plan, finder: Finder | None) -> None:
        self._encode = encode
        self._reason = make_filter(plan.source)
        self._threshold = plan.held_out
        self._finder = finder
        self.documents = 0
        """Read, empty ones not counted."""
        self.left_out: Counter[str] = Counter()
        """By the filter that refuses them."""
        self.repeated: Counter[str] = Counter()
        """Exact and near duplicates among those that the filters let pass."""
        self.bytes = 0
        """UTF-8 bytes of what neither filters nor duplicates take away; so are the counts below."""
        self.tokens = 0
        """Ids, the end-of-text token of each document among them."""
        self.held_out_tokens = 0
        """Tokens of the documents that the hash gives to validation."""
        self.lengths = array("I")
        """Tokens of each document."""

    def add(self, texts: list[str]) -> None:
        passed = []
        for text in texts:
            self.documents += 1
            reason = self._reason(text) if self._reason else None
            if reason:
                self.left_out[reason] += 1
            else:
                passed.append(text)
        verdicts = self._finder.add(passed) if self._finder else [""] * len(passed)
        for text, verdict in zip(passed, verdicts, strict=True):
            if verdict:
                self.repeated[verdict] += 1
                continue
            length = len(self._encode(text)) + 1
            self.bytes += len(text.encode("utf-8", "replace"))
            self.tokens += length
            self.lengths.append(length)
            if self._threshold and hash_place(text) < self._threshold:
                self.held_out_tokens += length

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
            "document_tokens": {
                name: int(value)
                for name, value in zip(
                    ("min", "p10", "median", "p90", "max"), np.percentile(lengths, (0, 10, 50, 90, 100)), strict=True
                )
            },
        }


def read(statistics: Statistics, plan: Plan, *, seed: int, max_docs: int) -> bool:
    """Count the first ``max_docs`` documents of a source, in their natural order; whether those were all."""
    progress = Progress(plan.source.label)
    documents = _documents(plan, seed)
    batch: list[str] = []
    for text, share in documents:
        batch.append(text)
        if len(batch) == BATCH or statistics.documents + len(batch) == max_docs:
            statistics.add(batch)
            batch = []
            # Whichever ends first: the text or the documents that were asked for.
            done = max(share, statistics.documents / max_docs)
            progress.update(done, 1.0, f"{statistics.documents:,} documents, {statistics.tokens:,} tokens")
        if statistics.documents == max_docs:
            progress.done()
            return next(documents, None) is None
    statistics.add(batch)
    progress.done()
    return True


def _documents(plan: Plan, seed: int) -> Iterator[tuple[str, float]]:
    """Documents, held-out ones too, each with about how much of the source has been read."""
    if plan.source.kind == "tales":
        stories = TalesStream(seed=seed, shard_index=0, num_shards=1, count=None)
        while True:
            yield next(stories), 0.0
    corpus = open_corpus(plan, whole=True)
    count = corpus.count()
    for part in range(count):
        reader = corpus.open(part, 0, None)
        while True:
            try:
                record = next(reader)
            except StopIteration:
                break
            text = reader.document(record)
            if text is not None:
                yield text, (part + reader.share()) / count


def histogram(lengths: array, span: tuple[int, int] | None = None, bins: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """How many tokens are in documents of each length: ``(edges[n + 1], tokens[n])``, on a logarithmic scale.

    ``span``: the least and the greatest length; by default those of ``lengths``.
    """
    values = np.frombuffer(lengths, dtype=np.uint32).astype(np.float64)
    least, greatest = span or (values.min(), values.max())
    edges = np.geomspace(max(1, least), greatest + 1, bins + 1)
    return edges, np.histogram(values, bins=edges, weights=values)[0]
