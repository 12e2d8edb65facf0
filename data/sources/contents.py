"""What a corpus of files holds, counted in one pass: records, documents, what the filters reject, a sample.

Tested in tests/data/account/test_account.py, tests/data/sources/test_plan.py.
"""

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from slm.data.sources.corpus import Corpus, records

NO_TEXT = "no text"
"""The reason of a record that holds no document: an empty one, or one that is no conversation."""
DUPLICATE = "duplicates"
"""The reason of a record that the list of duplicates names."""
SAMPLE_CHARS, SAMPLE_DOCUMENTS = 1 << 19, 1024
"""Most characters and documents kept as a sample of a corpus."""
SAMPLED_CHARS = 1 << 16
"""Most characters kept of one document, from its beginning."""
EXAMPLES, EXAMPLE_CHARS = 3, 300
"""Documents that are kept as examples of a filter's rejections, and characters kept of each."""
MOST_FILES = 64
"""With a limit at most this many files are opened, from everywhere in the list."""


class Document(NamedTuple):
    """What is known of a document."""

    size: int
    """Bytes, copies counted."""
    chars: int
    undivided: bool
    """Whether it is all of a file's plain text."""
    copies: int = 1
    """How often it occurs."""

    def is_long(self, divided: int) -> bool:
        """Whether a passage of it is held out, where documents of this many characters are divided."""
        return self.undivided and self.chars >= divided


@dataclass
class Contents:
    """What was counted."""

    documents: dict[float, Document] = field(default_factory=dict)
    """Those that pass the filters, by their unit hash."""
    records: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    """Records that are no documents, duplicates, and documents that a filter rejects, by reason."""
    examples: dict[str, list[str]] = field(default_factory=dict)
    """The beginnings of some documents that a filter rejects, by reason."""
    sample: dict[float, str] = field(default_factory=dict)
    """Some of the documents, from everywhere in what was read, by their unit hash; of long ones the beginning."""
    share: float = 1.0
    """Share of the corpus that was read, by bytes."""

    def add(self, text: str, undivided: bool) -> float:
        """Count a document that passes the filters. Returns its unit hash."""
        hashed = unit_hash(text)
        before = self.documents.get(hashed)
        size = len(text.encode("utf-8", "replace")) + (before.size if before else 0)
        self.documents[hashed] = Document(size, len(text), undivided, before.copies + 1 if before else 1)
        return hashed

    def reject(self, text: str, reason: str) -> None:
        """Count a document that a filter rejects."""
        self.left_out[reason] += 1
        examples = self.examples.setdefault(reason, [])
        if len(examples) < EXAMPLES:
            examples.append(text[:EXAMPLE_CHARS])


class Sample:
    """Every n-th document, with n doubled whenever too many were kept."""

    def __init__(self) -> None:
        self.kept: list[tuple[int, float, str]] = []
        """Numbers of documents, their unit hashes (0 where none was given), and the beginnings of their texts."""
        self._every, self._seen, self._chars = 1, 0, 0

    def add(self, hashed: float, text: str) -> None:
        if self._seen % self._every == 0:
            self.kept.append((self._seen, hashed, text[:SAMPLED_CHARS]))
            self._chars += len(self.kept[-1][2])
            while len(self.kept) > SAMPLE_DOCUMENTS or (self._chars > SAMPLE_CHARS and len(self.kept) > 1):
                self._every *= 2
                self.kept = [each for each in self.kept if each[0] % self._every == 0]
                self._chars = sum(len(each) for *_, each in self.kept)
        self._seen += 1


def count(
    open_corpus: Callable[[Callable[[str, bool], str]], Corpus[str]],
    sizes: list[int],
    *,
    reason: Callable[[str], str | None] | None,
    skipped: dict[int, np.ndarray] | None = None,
    limit: int | None = None,
) -> Contents:
    """Count a corpus of files of these ``sizes``, in bytes.

    ``open_corpus`` opens it with a function that it calls with each document of text and whether that is all of its
    file. ``reason`` names the filter that rejects a document. ``skipped`` lists the records that are duplicates, by
    file. ``limit``: read about this many characters, of several files.
    """
    contents, sample = Contents(), Sample()
    undivided = False

    def select(text: str, given: bool) -> str:
        nonlocal undivided
        undivided = given
        return text

    corpus = open_corpus(select)
    files = list(range(corpus.n_files()))
    if limit is not None and len(files) > MOST_FILES:
        files = [files[n * len(files) // MOST_FILES] for n in range(MOST_FILES)]
    chars_each = None if limit is None else max(SAMPLED_CHARS, limit // max(1, len(files)))
    read_bytes = 0.0
    for file in files:
        reader = corpus.open(file, 0, None)
        listed = set((skipped or {}).get(file, ()))
        chars, whole = 0, True
        for number, record in enumerate(records(reader)):
            undivided = False
            contents.records += 1
            text = reader.document(record)
            chars += len(text or "")
            if text is None:
                contents.left_out[NO_TEXT] += 1
            elif number in listed:
                contents.reject(text, DUPLICATE)
            elif rejected := reason and reason(text):
                contents.reject(text, rejected)
            else:
                sample.add(contents.add(text, undivided), text)
            if chars_each is not None and chars > chars_each:
                whole = False
                break
        read_bytes += sizes[file] * (1.0 if whole else reader.fraction_read() or min(1.0, chars / max(1, sizes[file])))
    contents.share = min(1.0, read_bytes / max(1, sum(sizes))) if chars_each is not None else 1.0
    contents.sample = {hashed: text for _, hashed, text in sample.kept}
    return contents


def unit_hash(text: str) -> float:
    """A document's hash as a number in [0, 1): the same on every machine."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
