"""The shard function: from some records of a text to their ids, written whole or not at all. Any process may run it.

Tested in tests/data/prepare/test_prepare.py.
"""

import functools
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from slm.data.account.account import EMPTY, HELD_OUT, IN_VALIDATION
from slm.data.bad_records import LEFT_OUT, REPLACED, TALLY
from slm.data.errors import UserError
from slm.data.prepare.work import Cut, Work
from slm.data.sources import duplicates
from slm.data.sources.contents import DUPLICATE, EXAMPLE_CHARS, EXAMPLES
from slm.data.sources.documents import make_share
from slm.data.sources.filters import make_change, make_filter
from slm.data.sources.plan import open_whole_corpus
from slm.data.sources.prepared.manifest import CALIBRATION, CALIBRATION_PASSAGE, ROW, TRAIN, VALIDATION
from slm.data.storage import DIGEST_BYTES, atomic_write_bytes
from slm.data.tokenizers.fast_encode import make_encode
from slm.data.tokenizers.tokenizer import Tokenizer

PARTS = (TRAIN, VALIDATION, CALIBRATION, CALIBRATION_PASSAGE)


def make_shard(work: Work, number: int, note: Callable[[int], None] = lambda chars: None) -> None:
    """Make a shard. ``note`` is told how many characters were read.

    UserError for a record that cannot be read where ``on_bad`` says stop, and for a disk without room.
    """
    shard = work.shards[number]
    with TALLY.apart():
        made = _Maker(work, shard.text, note)
        stretches = [made.read(cut) for cut in shard.cuts]
        counts = made.counts()
        made.close()
    index = np.array(made.rows, ROW).reshape(-1, 4)
    tokens = np.concatenate(made.ids) if made.ids else np.empty(0, made.dtype)
    content, rows = tokens.tobytes(), index.tobytes()
    text = work.texts[shard.text]
    said = {
        "source": text.source,
        "own_validation": text.own_validation,
        "tokens": len(tokens),
        "rows": len(index),
        "stretches": stretches,
        "digest": hashlib.blake2b(content + rows, digest_size=DIGEST_BYTES).hexdigest(),
        "counts": counts,
    }
    try:
        atomic_write_bytes(work.path(number, "tokens"), content)
        atomic_write_bytes(work.path(number, "index"), rows)
        # Last: a shard is made where this is.
        atomic_write_bytes(work.path(number, "json"), json.dumps(said, ensure_ascii=True).encode() + b"\n")
    except OSError as error:
        raise UserError(
            f"{work.path(number, 'tokens')} ({len(content):,} bytes) cannot be written ({error.strerror or error}): "
            "make room, and type the same command again"
        ) from error


class _Maker:
    """The documents of a shard so far."""

    def __init__(self, work: Work, number: int, note: Callable[[int], None]) -> None:
        text = work.texts[number]
        plan = text.plan
        self._text, self._plan, self._note = text, plan, note
        self._encode = _encoder(work.tokenizer)
        self._around = 1 + len(work.tokenizer.begins)  # ids that training writes around a document
        self.dtype = dtype_of(work.tokenizer.vocab_size)
        self._reason = make_filter(plan.source, validation_text=plan.is_validation_text)
        change = make_change(plan.source, validation_text=plan.is_validation_text, note=self._count_change)
        self._change: Callable[[str], str] = change or str
        self._shares = [(part, make_share(its)) for part, its in text.shares]
        self._divides = plan.source.kind == "files"  # of other sources a document is read as a whole
        self._skipped = duplicates.load(plan)
        self._undivided = False
        self._corpus = open_whole_corpus(plan, self._select)
        self.rows: list[tuple[int, int, int, int]] = []
        self.ids: list[np.ndarray] = []
        self._read = self._nothing = self._passages = self._chars = 0
        self._left_out: Counter[str] = Counter()
        self._changed: Counter[str] = Counter()
        self._examples: dict[str, list[str]] = {}
        self._parts = {part: Counter[str](documents=0, bytes=0, tokens=0) for part in PARTS}

    def read(self, cut: Cut) -> tuple[int, int, int]:
        """Take some records of a file. Returns the file, and how many records and rows of the index it has here."""
        reader = self._corpus.open(cut.file, cut.record, cut.position)
        listed = self._skipped.get(cut.file)
        skipped = frozenset[int]() if listed is None else frozenset(listed.tolist())
        rows, n_records = len(self.rows), 0
        for number in itertools.count() if cut.n_records is None else range(cut.n_records):
            try:
                record = next(reader)
            except StopIteration:
                break
            n_records += 1
            self._undivided = False
            document = reader.document(record)
            if document is None:
                self._nothing += 1
            elif cut.record + number in skipped:
                self._left_out[DUPLICATE] += 1
            elif why := self._reason and self._reason(document):
                self._left_out[why] += 1
                examples = self._examples.setdefault(why, [])
                if len(examples) < EXAMPLES:
                    examples.append(document[:EXAMPLE_CHARS])
            else:
                self._divide(number, document)
            self._chars += len(document or "")
            self._note(self._chars)
        self._read += n_records
        return cut.file, n_records, len(self.rows) - rows

    def counts(self) -> dict[str, Any]:
        """What was counted, as plain values. ``read`` is the sum of what is taken and of what is left out."""
        for reason, bad in TALLY.record(kind=LEFT_OUT).items():
            self._left_out[reason] += bad.count
            self._examples.setdefault(reason, [bad.first])
            # The rest of a file that cannot be read is no record, and counts as one.
            self._read += max(0, bad.count - self._nothing)
            self._nothing = max(0, self._nothing - bad.count)
        if self._nothing:
            self._left_out[EMPTY] += self._nothing
        return {
            "read": self._read,
            "left_out": dict(self._left_out),
            "examples": self._examples,
            "passages": self._passages,
            "changed": dict(self._changed),
            "replaced": {what: found.count for what, found in TALLY.record(kind=REPLACED).items()},
            "parts": {str(part): dict(found) for part, found in self._parts.items()},
        }

    def close(self) -> None:
        """Let go of the corpus, which refers to this object: the ids of a hundred shards waited for Python's collector
        of such circles."""
        del self._corpus

    def _select(self, text: str, undivided: bool) -> str:
        self._undivided = undivided
        return text

    def _count_change(self, kind: str, stood: str) -> None:
        self._changed[kind] += 1

    def _divide(self, record: int, document: str) -> None:
        """Encode what each split reads of a document."""
        found = {}
        for part, share in self._shares:
            if taken := share(document, self._undivided):
                found[part] = taken if self._divides else document
        if TRAIN in found and CALIBRATION in found:
            found[CALIBRATION_PASSAGE] = found.pop(CALIBRATION)
        if not self._text.own_validation and TRAIN not in found and CALIBRATION not in found:
            self._left_out[IN_VALIDATION if self._plan.source.val_files else HELD_OUT] += 1
        self._passages += TRAIN in found and VALIDATION in found
        for part, taken in found.items():
            text = self._change(taken)
            ids = np.asarray(self._encode(text)).astype(self.dtype)
            self.ids.append(ids)
            self.rows.append((record, part, len(ids), len(text)))
            size = len(text.encode("utf-8", "replace"))
            self._parts[part].update(documents=1, bytes=size, tokens=len(ids) + self._around)


@functools.lru_cache(maxsize=1)
def _encoder(tokenizer: Tokenizer) -> Callable[[str], Any]:
    """Made once in a process, not for each shard: it takes a second and 20 MB."""
    return make_encode(tokenizer)


def dtype_of(vocab_size: int) -> str:
    """The numbers that hold the ids of such a vocabulary."""
    return "<u2" if vocab_size <= 1 << 16 else "<u4"
