"""How much text there is, and how many bytes a token of each vocabulary stands for. A sample of large text is counted.

Tested in tests/train/budget/test_corpus.py.
"""

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer as Backend

from slm.data.account.account import account
from slm.data.config import DataConfig
from slm.data.sources.corpus import records
from slm.data.sources.documents import open_corpus, sample_documents
from slm.data.sources.plan import Plan, plan_sources
from slm.data.tokenizers import train_bpe
from slm.train.budget.shapes import VOCABULARIES
from slm.train.predict import ngram

READ_BYTES = 12_000_000
"""Most bytes of text that are read from one source."""
SAMPLED_FILES = 16
"""Number of files of a large source that are sampled."""
SAMPLE_BYTES = 3_000_000
"""Bytes of the sample on which vocabularies are tried. Its last fifth is held out."""
BYTES_PER_MERGE = 250
"""Bytes of text per token of the vocabulary on which a tokenizer is trained, or all of the text if there is less."""
LONGER = 0.06
"""Bytes per token grow with the vocabulary's size to this power, assumed where the sample has too few merges to measure
it (books: 4.16 bytes with 16,384 tokens, 4.39 with 32,768, 4.47 with 48,675)."""


@dataclass(frozen=True)
class CorpusSize:
    """Size and predictability of a run's text."""

    bytes: float
    """Bytes of training text in UTF-8, without held-out text and filtered documents; infinite where all sources are
    endless."""
    exact: bool
    """Whether all of the text was read, not a sample."""
    bytes_per_token: dict[int, float]
    """Bytes per token by vocabulary size, for the sizes that the text is large enough for."""
    level: ngram.Level
    """How predictable the text is, relative to the law's English books."""


def count(data: DataConfig, seed: int, vocabularies: Sequence[int] = VOCABULARIES) -> CorpusSize:
    """Count the training text of ``data``. UserError for what cannot be read."""
    plans = plan_sources(data, "train")
    sizes, whole = zip(*map(_size, plans), strict=True)
    total, exact = _together(sizes, [plan.source.weight for plan in plans]), all(whole)
    sample = "\n\n".join(sample_documents(data, "train", SAMPLE_BYTES, seed, SAMPLE_BYTES // 8))
    excerpts = list(sample_documents(data, "train", SAMPLE_BYTES, seed, ngram.EXCERPT))
    return CorpusSize(total, exact, bytes_per_token(sample, vocabularies, total), ngram.level(excerpts))


def _together(sizes: Sequence[float], weights: Sequence[float]) -> float:
    """Bytes of all sources. An endless one counts for what its weight gives it until the others are read once; without
    others the text is endless."""
    ending = [(size, weight) for size, weight in zip(sizes, weights, strict=True) if size < math.inf]
    if not ending:
        return math.inf
    return sum(size for size, _ in ending) * sum(weights) / sum(weight for _, weight in ending)


def _size(plan: Plan) -> tuple[float, bool]:
    """Bytes of a source's training text, and whether all of it was read."""
    if plan.prepared is not None:
        found = account(plan)
        return (math.inf, False) if found is None else (float(found.taken_bytes), True)
    if not plan.files:
        return math.inf, False  # generated, or on the Hub: nobody knows its size before it is read
    sizes = [max(1, os.path.getsize(path)) for path in plan.files]
    corpus = open_corpus(plan)
    # All of a small source; of a large one pieces from files that are evenly spread.
    whole = sum(sizes) <= READ_BYTES
    step = 1 if whole else max(1, len(sizes) // SAMPLED_FILES)
    chosen = range(0, len(sizes), step)
    share = math.inf if whole else READ_BYTES / len(chosen)
    text = disk = 0.0
    exact = whole
    for file in chosen:
        reader, of_file = corpus.open(file, 0, None), 0.0
        for record in records(reader):
            document = reader.document(record)
            of_file += len(document.encode("utf-8", "replace")) if document else 0
            if of_file >= share:
                disk += sizes[file] * max(reader.fraction_read(), 1e-9)
                break
        else:
            disk += sizes[file]
        text += of_file
    return text * sum(sizes) / disk, exact


def bytes_per_token(sample: str, vocabularies: Sequence[int], total: float = 0.0) -> dict[int, float]:
    """Bytes that a token of a byte-level BPE stands for, by its number of ids; ``sample`` is of ``total`` bytes.

    One BPE is trained, of the largest size: a smaller one has the first of its merges. The largest vocabularies are
    left out where the text gives them too few merges. More text gives more of them as far as it has more words.
    """
    cut = len(sample) * 4 // 5
    files = train_bpe.train([sample[:cut]], vocab_size=max(vocabularies))
    spec = json.loads(files["tokenizer.json"])
    merges, held_out = spec["model"]["merges"], sample[cut : cut + 400_000]
    growth = _growth(sample)
    found: dict[int, float] = {}
    for size in sorted(vocabularies):
        n_merges = size - 257
        if n_merges > len(merges) and found:
            text = min(total, BYTES_PER_MERGE * size) / cut
            if text > 1 and n_merges <= len(merges) * text**growth:
                largest = max(found)
                found[size] = found[largest] * (size / largest) ** LONGER
            continue
        backend = Backend.from_str(json.dumps(_first(spec, n_merges)))
        ids = len(backend.encode(held_out, add_special_tokens=False).ids)
        found[size] = len(held_out.encode("utf-8", "replace")) / max(1, ids)
    return found


def _growth(text: str) -> float:
    """The power of a text's length with which its different words grow in number (Heaps' law): .63 for the books, .04
    for the embedded stories."""
    words = text.split()
    half = len(set(words[: len(words) // 2]))
    return math.log2(len(set(words)) / half) if half else 0.0


def _first(spec: dict[str, Any], n_merges: int) -> dict[str, Any]:
    """The tokenizer with only its first merges. A vocabulary lists the merged tokens in the merges' order."""
    vocab = {token: id for token, id in spec["model"]["vocab"].items() if id < 257 + n_merges}
    model = {**spec["model"], "vocab": vocab, "merges": spec["model"]["merges"][:n_merges]}
    return {**spec, "model": model}
