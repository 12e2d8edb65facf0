"""How predictable a text is: bits per byte of a byte n-gram model with back-off and a short memory.

The loss law is fitted to English books. Another text has another level, and this model measures it in seconds. It
combines what a small language model learns: statistics of the corpus (an n-gram model with absolute discounting,
Ney et al. 1994) and repetition within the context (the byte that followed the last occurrence of the same bytes, as
in the match model of PAQ). A general compressor such as bz2 sees only repetition, and so calls program code easy.

Tested in tests/train/predict/test_ngram.py.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ORDER = 5
"""Most bytes of context of the n-gram model."""
DISCOUNT = 0.75
"""Subtracted from each count and given to the shorter context."""
MATCHED = (4, 6, 7)
"""Bytes of context that must have occurred before, from the weakest prediction to the strongest."""
WINDOW = 2048
"""Bytes of memory for repetition: about a context of 512 tokens."""
PIECE, HELD_OUT = 8192, 3
"""A third of the documents, by their bytes, is predicted from the others."""
LEAST_DOCUMENTS = 12
"""Where there are fewer documents, or one of them is a quarter of the text, it is cut into pieces of at most ``PIECE``
bytes."""
EXCERPT = 16_000
"""Characters of a document in the sample. A few long documents would say little of the next one."""
LEAST_BYTES = 20_000
"""Bytes of text below which no level is measured."""
BOOKS = {
    30_000: (2.78, 2.85),
    100_000: (2.67, 2.75),
    300_000: (2.52, 2.67),
    1_000_000: (2.253, 2.353),
    3_000_000: (2.074, 2.140),
}
"""Bits per byte of samples of the law's English books, by their bytes: with memory, and without. Means of 4 to 16
samples."""
_LONGEST = max(ORDER, *MATCHED)
_ROUNDS = 12
"""Iterations of expectation maximization for the weight of a matched byte."""


@dataclass(frozen=True)
class Level:
    """Bits per byte of the n-gram model on a text, relative to a sample of the English books of the same size."""

    remembering: float = 1.0
    """With the memory for repetition."""
    forgetting: float = 1.0
    """Without it."""


def level(documents: Sequence[str]) -> Level:
    """The level of a text by a sample of its ``documents``; that of the books for too short a sample."""
    contents = [each.encode("utf-8", "replace") for each in documents]
    size = sum(map(len, contents))
    if size < LEAST_BYTES:
        return Level()
    sizes = np.log(list(BOOKS))
    books = [float(np.interp(math.log(size), sizes, column)) for column in zip(*BOOKS.values(), strict=True)]
    found = bits_per_byte(contents)
    return Level(remembering=found[0] / books[0], forgetting=found[1] / books[1])


def bits_per_byte(documents: Sequence[bytes]) -> tuple[float, float]:
    """Bits per byte of some of the documents, predicted from the others: with the memory of what stands before in the
    document, and without."""
    if len(documents) < LEAST_DOCUMENTS or 4 * max(map(len, documents)) > sum(map(len, documents)):
        whole = b"\n\n".join(documents)
        size = max(4 * _LONGEST, min(PIECE, len(whole) // (2 * LEAST_DOCUMENTS)))
        documents = [whole[start : start + size] for start in range(0, len(whole), size)]
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    seen_bytes = held_out_bytes = 0
    for document in documents:  # by bytes, so that a long document does not change the share
        if held_out_bytes * (HELD_OUT - 1) < seen_bytes:
            parts[1].append(document)
            held_out_bytes += len(document)
        else:
            parts[0].append(document)
            seen_bytes += len(document)
    seen, held_out = (np.frombuffer(b"\n\n".join(part), np.uint8).astype(np.uint64) for part in parts)
    without = found = _ngram(seen, held_out)
    for length in MATCHED:
        found = _with_matches(found, held_out, length)
    return float(-np.log2(found).mean()), float(-np.log2(without).mean())


def _keys(values: np.ndarray, length: int) -> np.ndarray:
    """uint64 [N - _LONGEST]: each byte from number ``_LONGEST`` on, behind the ``length`` bytes before it."""
    n = len(values) - _LONGEST
    keys = np.zeros(n, np.uint64)
    for back in range(length, -1, -1):
        keys = (keys << np.uint64(8)) | values[_LONGEST - back : _LONGEST - back + n]
    return keys


def _ngram(seen: np.ndarray, held_out: np.ndarray) -> np.ndarray:
    """float64 [N]: the probability of each held-out byte."""
    found = np.full(len(held_out) - _LONGEST, 1 / 256)
    for length in range(ORDER + 1):
        known, counts = np.unique(_keys(seen, length), return_counts=True)
        contexts, starts = np.unique(known >> np.uint64(8), return_index=True)
        totals = np.add.reduceat(counts, starts)
        successors = np.diff(np.append(starts, len(known)))
        asked = _keys(held_out, length)
        place = np.searchsorted(known, asked).clip(max=len(known) - 1)
        count = np.where(known[place] == asked, counts[place], 0)
        place = np.searchsorted(contexts, asked >> np.uint64(8)).clip(max=len(contexts) - 1)
        has_context = contexts[place] == asked >> np.uint64(8)
        shared = DISCOUNT * successors[place] * found
        found = np.where(has_context, (np.maximum(count - DISCOUNT, 0) + shared) / totals[place], found)
    return found


def _with_matches(found: np.ndarray, held_out: np.ndarray, length: int) -> np.ndarray:
    """The probabilities mixed with the byte that followed the last occurrence of the ``length`` bytes before."""
    context = _keys(held_out[:-1], length - 1)
    order = np.argsort(context, kind="stable")
    again = np.append(False, context[order][1:] == context[order][:-1])
    last = np.full(len(context), -1)
    last[order[again]] = order[np.flatnonzero(again) - 1]
    numbers = np.arange(len(context))
    has_match = (last >= 0) & (numbers - last < WINDOW)
    following = held_out[_LONGEST + 1 :]
    right = has_match & (following[last.clip(min=0)] == following)
    mixed = found.copy()
    later = mixed[1:]
    if has_match.any():
        weight = 0.5
        for _ in range(_ROUNDS):
            hit = weight * right[has_match]
            weight = float((hit / (hit + (1 - weight) * later[has_match])).mean())
        later[has_match] = (1 - weight) * later[has_match] + weight * right[has_match]
    return mixed
