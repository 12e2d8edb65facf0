"""Documents that repeat earlier ones: signatures made by any process, shard by shard, and compared in order by one.

The list is that of ``slm.data.sources.duplicates``, which reads all text by one process.

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
from slm.data.sources import duplicates
from slm.data.sources.corpus import records
from slm.data.sources.duplicates import Finder, signature
from slm.data.sources.filters import make_filter
from slm.data.sources.plan import open_whole_corpus
from slm.data.sources.prepared.manifest import VALIDATION
from slm.data.storage import atomic_write_bytes


def make_signatures(work: Work, number: int, note: Callable[[int], None] = lambda chars: None) -> None:
    """The signatures of a shard's documents that pass the filters. ``note`` is told how many characters were read."""
    assert work.dedup is not None
    shard = work.shards[number]
    plan = work.texts[shard.text].plan
    reason = make_filter(plan.source, validation_text=plan.is_validation_text)
    corpus = open_whole_corpus(plan)
    files, numbers, digests, states = array("Q"), array("Q"), array("Q"), []
    chars = 0
    with TALLY.apart():
        for cut in shard.cuts:
            reader = corpus.open(cut.file, cut.record, cut.position)
            stop = None if cut.n_records is None else cut.record + cut.n_records
            for record_number, record in enumerate(records(reader), cut.record):
                text = reader.document(record)
                if text is not None and (reason is None or reason(text) is None):
                    digest, state = signature(text, work.dedup.mode)
                    files.append(cut.file)
                    numbers.append(record_number)
                    digests.append(digest)
                    states.append(state)
                chars += len(text or "")
                note(chars)
                if record_number + 1 == stop:
                    break
    buffer = io.BytesIO()
    sizes = list(map(len, states))  # they differ by some bytes
    columns = np.array([files, numbers, digests, sizes], np.uint64).reshape(4, -1)
    np.savez(buffer, columns=columns, sketches=np.frombuffer(b"".join(states), np.uint8))
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
    finder = Finder(work.dedup.mode, work.dedup.threshold)
    lists: dict[str, np.ndarray] = {}
    counts = {"documents": 0, "exact": 0, "near": 0}
    cut = False
    progress = Progress(f"looking for {work.dedup.mode} duplicates")
    names = duplicates.names_of([text.plan for text in work.texts])
    for number in _order(work.texts):
        if names[number] in lists:  # the same files as another source
            continue
        found = array("Q"), array("Q")  # files, records
        for shard, its in enumerate(work.shards):
            if its.text != number or cut:
                continue
            with np.load(work.path(shard, MADE["signatures"])) as made:
                columns, sketches = made["columns"], made["sketches"].tobytes()
            start = 0
            for file, record, digest, length in columns.T.tolist():
                if counts["documents"] == work.dedup.max_docs:
                    cut = True
                    break
                counts["documents"] += 1
                if verdict := finder.add_signature(digest, sketches[start : start + length]):
                    counts[verdict] += 1
                    found[0].append(file)
                    found[1].append(record)
                start += length
            progress.update(shard + 1, len(work.shards), f"{counts['documents']:,} documents compared")
        lists[names[number]] = np.array(found, dtype=np.uint64).reshape(2, -1)
    progress.done()
    duplicates.write(work.list, lists)
    duplicates.report(counts, cut=cut)


def _order(texts: tuple[Text, ...]) -> list[int]:
    """Validation text first, so that training text that repeats it is left out."""
    validated = [number for number, text in enumerate(texts) if any(part == VALIDATION for part, _ in text.shares)]
    return [*validated, *(number for number in range(len(texts)) if number not in validated)]


def remove_signatures(work: Work) -> None:
    """They are not needed when the list is there."""
    shutil.rmtree(work.folder / SIGNATURES, ignore_errors=True)
