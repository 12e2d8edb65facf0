"""The text that a tokenizer is trained on.

Tested in tests/data/tokenizers/test_train_bpe.py.
"""

from collections.abc import Iterable, Iterator

from slm.data.errors import UserError


class Sample:
    """The first ``limit`` bytes' worth of documents."""

    def __init__(self, documents: Iterable[str], limit: int) -> None:
        self._documents = documents
        self._limit = limit
        self._used = 0

    def __iter__(self) -> Iterator[str]:
        for text in self._documents:
            yield text
            self._used += len(text.encode("utf-8", "replace"))
            if self._used >= self._limit:
                return

    def require_text(self) -> None:
        """UserError where nothing was read."""
        if not self._used:
            raise UserError("the corpus has no text to train a tokenizer on: check data.files, or use tokenizer=gpt2")
