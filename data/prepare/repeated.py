"""Documents that repeat earlier ones: signatures made by any process, shard by shard, and compared in order by one.

The list equals the one of ``slm.data.sources.duplicates``, which reads all text by one process.

Tested in tests/data/prepare/test_prepare.py.
"""

import io
import shutil
from array import array
from collections.abc import Callable

import numpy as np

from slm.data.bad_records import TALLY
from slm.data.errors import UserError
from slm.data.prepare.work import MADE, SIGNATURES, Text, Work
from slm.data.progress import Progress
from slm.data.quality.repeats.sketch import digest, sketches
from slm.data.quality.words import normalized
from slm.data.sources import duplicates
from slm.data.sources.corpus import records
from slm.data.sources.filters import make_filter
from slm.data.sources.plan import open_whole_corpus
from slm.data.sources.prepared.manifest import VALIDATION
from slm.data.storage import atomic_write_bytes

AT_ONCE = 64
"""Number of documents that are sketched together."""
COMPARED = "compared"
"""The folder for what the comparison needs, in the corpus's folder for its work."""


def make_signatures(work: Work, number: int, note: Callable[[int], None] = lambda chars: None) -> None:
    """The signatures of a shard's documents that pass the filters. ``note`` is told how many characters were read."""
    assert work.dedup is not None
    shard = work.shards[number]
    plan = work.texts[shard.text].plan
    reason = make_filter(plan.source, validation_text=plan.is_validation_text)
    corpus = open_whole_corpus(plan)
    mode = work.dedup.mode
    places, plain = array("Q"), []
    digests, found = array("Q"), []
    chars = 0
    with TALLY.apart():
        for cut in shard.cuts:
            reader = corpus.open(cut.file, cut.record, cut.position)
            stop = None if cut.n_records is None else cut.record + cut.n_records
            for record_number, record in enumerate(records(reader), cut.record):
                text = reader.document(record)
                if text is not None and (reason is None or reason(text) is None):
                    places.extend((cut.file, record_number))
                    words = normalized(text)
                    digests.append(digest(words))
                    if mode == "near":
                        plain.append(words)
                        if len(plain) == AT_ONCE:
                            found.append(sketches(plain))
                            plain.clear()
                chars += len(text or "")
                note(chars)
                if record_number + 1 == stop:
                    break
    columns = [np.array(places, np.uint64).reshape(-1, 2), np.array(digests, np.uint64)]
    if mode == "near":
        columns.append(np.concatenate([*found, sketches(plain)]))
    buffer = io.BytesIO()
    np.savez(buffer, *columns)
    path = work.path(number, MADE["signatures"])
    try:
        atomic_write_bytes(path, buffer.getvalue())
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error.strerror or error}): make room, and type the same command again"
        ) from error


def list_repeated(work: Work) -> None:
    """Compare the signatures of all shards, in the order of the text, and write the list of duplicates."""
    assert work.dedup is not None
    progress = Progress(f"looking for {work.dedup.mode} duplicates")
    names = duplicates.names_of([text.plan for text in work.texts])
    seen: set[str] = set()
    folder = work.folder / COMPARED
    with duplicates.Comparison(folder, work.dedup.mode, work.dedup.threshold, most=work.dedup.max_docs) as found:
        for number in _order(work.texts):
            if names[number] in seen:  # the same files as another source
                continue
            seen.add(names[number])
            found.begin(names[number])
            for shard, its in enumerate(work.shards):
                if its.text != number or found.is_full:
                    continue
                with np.load(work.path(shard, MADE["signatures"])) as made:
                    places, digests, *near = (made[name] for name in made.files)
                found.add(places, digests=digests, sketches=near[0] if near else None)
                progress.update(shard + 1, len(work.shards), f"{found.documents:,} documents compared")
        found.write(work.list)
        progress.done()
        found.report()


def _order(texts: tuple[Text, ...]) -> list[int]:
    """Validation text first, so that training text that repeats it is left out."""
    validated = [number for number, text in enumerate(texts) if any(part == VALIDATION for part, _ in text.shares)]
    return [*validated, *(number for number in range(len(texts)) if number not in validated)]


def remove_signatures(work: Work) -> None:
    """They are not needed when the list is there."""
    shutil.rmtree(work.folder / SIGNATURES, ignore_errors=True)
