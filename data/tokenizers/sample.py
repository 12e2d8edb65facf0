"""The text that a tokenizer is trained on.

Tested in tests/data/tokenizers/test_train_bpe.py.
"""

import re
from collections.abc import Iterable, Iterator

from slm.data.errors import UserError

PIECE = 1 << 16
"""Characters of a document that the trainer gets at once, about. It needs 40 bytes for each while it counts words."""
BETWEEN_WORDS = re.compile(r"(?<=\S\n)(?=\S)|(?<=\S)(?= \S)")
"""Where no pattern of ``slm.data.tokenizers.splits`` has a word that reaches over: words are the same on both sides."""


class Sample:
    """The first ``limit`` bytes' worth of documents, long ones in pieces that have the same words."""

    def __init__(self, documents: Iterable[str], limit: int) -> None:
        self._documents = documents
        self._limit = limit
        self._used = 0

    def __iter__(self) -> Iterator[str]:
        for text in self._documents:
            yield from _pieces(text)
            self._used += len(text.encode("utf-8", "replace"))
            if self._used >= self._limit:
                return

    def require_text(self) -> None:
        """UserError where nothing was read."""
        if not self._used:
            raise UserError("the corpus has no text to train a tokenizer on: check data.files, or use tokenizer=gpt2")


def _pieces(text: str) -> Iterator[str]:
    start = 0
    while len(text) - start > PIECE and (found := BETWEEN_WORDS.search(text, start + PIECE)):
        yield text[start : found.start()]
        start = found.start()
    yield text[start:]
