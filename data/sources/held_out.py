"""Which documents of a small corpus are held out for validation, so that both splits have text.

Tested in tests/data/sources/test_plan.py.
"""

import functools
import itertools
from typing import Any

from slm.data.config import SourceConfig
from slm.data.errors import UserError
from slm.data.sources.contents import NO_TEXT, Contents, Document, count
from slm.data.sources.conversations.chat_files import ChatFileCorpus
from slm.data.sources.corpus import Corpus, FileCorpus, Select
from slm.data.sources.files import Reading, few_names
from slm.data.sources.filters import make_filter

CONVERSATIONS = "\0conversations"  # in place of a field of text
LEAST_VALIDATION = 16 << 10  # bytes held out of a small corpus, but never more than a tenth of it
DIVIDED = 32768  # characters; a shorter document is held out as a whole or not at all
FEW_DOCUMENTS = 20  # a small corpus of fewer documents holds out a part of each ...
DIVIDED_OF_FEW = 1000  # ... that has as many characters
LARGEST_PASSAGE = 0.25  # ... at most this share of it, if the other ones are too short to be divided
ABOUT = 1.25  # a small corpus may hold out this many times a tenth (or val_fraction), because documents stay whole


@functools.lru_cache(maxsize=16)
def contents_of(stamped: tuple[Any, ...], reading: Reading, filters: tuple[Any, ...]) -> Contents:
    """What a small corpus of files holds."""
    paths = tuple(path for path, _, _ in stamped)
    chats = reading.text_field == CONVERSATIONS
    source = SourceConfig(kind="chat" if chats else "files", files=list(paths), **dict(filters))

    def open_corpus(select: Select) -> Corpus[str]:
        if chats:
            return ChatFileCorpus(paths, stop=False, columns=reading.columns)
        return FileCorpus(paths, reading, select)

    return count(
        open_corpus,
        [size for _, size, _ in stamped],
        reason=make_filter(source),
    )


def documents_of(stamped: tuple[Any, ...], reading: Reading, filters: tuple[Any, ...]) -> dict[float, Document]:
    """The documents of a small corpus that pass the filters, by their unit hash."""
    return contents_of(stamped, reading, filters).documents


@functools.lru_cache(maxsize=16)
def hold_out(
    stamped: tuple[Any, ...], reading: Reading, filters: tuple[Any, ...], val_fraction: float, divisible: bool
) -> dict[str, Any]:
    """What a small corpus holds out, so that both splits have text: fields of a plan.

    ``divisible``: whether long documents of plain text give up a passage, instead of all or nothing.
    """
    paths = [path for path, _, _ in stamped]
    contents = contents_of(stamped, reading, filters)
    documents = contents.documents
    if not documents and contents.left_out.total() > contents.left_out[NO_TEXT]:
        reasons = ", ".join(f"{count:,} by {why}" for why, count in contents.left_out.most_common(5))
        raise UserError(
            f"nothing is left of {few_names(paths)}: of {contents.records:,} records are left out {reasons}; change "
            "these options of data, or give other text"
        )
    if not documents:
        raise UserError(f"the corpus is empty: {few_names(paths)} hold no text; check data.files and data.text_field")
    divided = DIVIDED_OF_FEW if len(documents) < FEW_DOCUMENTS else DIVIDED
    long = {hashed for hashed, found in documents.items() if divisible and found.is_long(divided)}
    if len(documents) == 1 and not long:
        raise UserError(
            f"the corpus is one document ({few_names(paths)}), so none can be held out: give more text, or "
            "data.val_files=[...]"
        )
    chats = reading.text_field == CONVERSATIONS
    if chats:  # a share of the different ones: one that stands there a thousand times counts once
        documents = {hashed: found._replace(size=found.size // found.copies) for hashed, found in documents.items()}
    total = sum(found.size for found in documents.values())
    least = total // 10
    if chats:  # each may hold a fact that stands nowhere else
        least = int(val_fraction * total)
    wanted = min(LEAST_VALIDATION, least)
    most = int(ABOUT * max(total // 10, val_fraction * total))
    short = {hashed: found for hashed, found in documents.items() if hashed not in long}
    if not long:
        return _whole_documents(short, wanted, most, val_fraction)
    in_long = sum(documents[hashed].size for hashed in long)
    passage = max(val_fraction, wanted / total)
    if len(documents) < FEW_DOCUMENTS:
        if passage * in_long * ABOUT < wanted:  # the short ones are trained on, so the long ones give more
            passage = min(wanted / in_long, LARGEST_PASSAGE)
        return {"held_out": 0.0, "passage": passage, "divided": divided}
    in_passages = int(passage * in_long)
    whole: dict[str, Any] = {"held_out": 0.0}
    if len(short) > 1:
        whole = _whole_documents(short, max(0, wanted - in_passages), most - in_passages, val_fraction)
    return {**whole, "passage": passage, "divided": divided}


def _whole_documents(documents: dict[float, Document], wanted: int, most: int, val_fraction: float) -> dict[str, Any]:
    """Which of a small corpus' documents are held out as a whole: ``held_out`` and perhaps ``longest_held_out``.

    A long document may have one of the first hashes. Where it alone would be more than ``most`` bytes, only documents
    up to some length are held out: the greatest with which there are at least ``wanted`` bytes and at most ``most``.
    """
    found: list[tuple[bool, int, dict[str, Any]]] = []
    longest = 0
    fitting = documents
    while len(fitting) > 1 or not found:
        sizes = {hashed: each.size for hashed, each in fitting.items()}
        held_out = _hash_range(sizes, wanted, val_fraction)
        got = sum(size for hashed, size in sizes.items() if hashed < held_out)
        limit = {"longest_held_out": longest} if longest else {}
        found.append((got < wanted, got, {"held_out": held_out, **limit}))
        if got <= most:
            break
        longest = max(each.chars for each in fitting.values()) // 2
        fitting = {hashed: each for hashed, each in documents.items() if each.chars <= longest}
    return min(found, key=lambda each: each[:2])[2]


def _hash_range(sizes: dict[float, int], wanted: int, val_fraction: float) -> float:
    """The range of hashes, from 0, that holds out ``wanted`` bytes and leaves some.

    Of many documents about ``val_fraction`` have a hash below it, but of a few perhaps none, or all.
    """
    hashes = sorted(sizes)
    got, threshold = 0, 0.0
    for hashed, following in itertools.pairwise(hashes):
        # The last document is never reached: it stays in training.
        got += sizes[hashed]
        threshold = (hashed + following) / 2
        if got >= wanted and threshold >= val_fraction:
            break
    natural = sum(size for hashed, size in sizes.items() if hashed < val_fraction)
    return val_fraction if natural >= wanted and hashes[-1] >= val_fraction else threshold
