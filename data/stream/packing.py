"""From documents to blocks of tokens, without padding and without loss.

Documents follow each other with the end-of-text token after each, and before each what the tokenizer itself writes
there (the beginning-of-text token of models that use one). A block holds ``seq_len + 1`` tokens, and its
last token is the first of the next block. So inputs ``block[:-1]`` and targets ``block[1:]`` predict every token
of the stream exactly once.

Shape suffixes: B blocks, T positions.
"""

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from slm.data.sources.document_stream import DocumentStream, Encoded, State, TokenStream
from slm.data.sources.mixture import latest_epoch


class Tokenized:
    """A document stream's tokens. Its position is the documents' position."""

    def __init__(
        self,
        documents: DocumentStream,
        encode: Callable[[str], Sequence[int]],
        *,
        eot_id: int,
        begins: Sequence[int] = (),
    ) -> None:
        """``begins``: ids before each document, ``Tokenizer.begins``."""
        self._documents = documents
        self._encode = encode
        self._eot_id = eot_id
        self._begins = np.array(begins, dtype=np.int32)

    def __next__(self) -> np.ndarray:
        document = next(self._documents)
        ids = document.ids if isinstance(document, Encoded) else self._encode(document)
        start = len(self._begins)
        tokens = np.empty(start + len(ids) + 1, dtype=np.int32)
        tokens[:start] = self._begins
        tokens[start:-1] = ids
        tokens[-1] = self._eot_id
        return tokens

    def state_dict(self) -> State:
        return self._documents.state_dict()

    def load_state_dict(self, state: State) -> None:
        self._documents.load_state_dict(state)


class Packer:
    """An iterator of blocks, ``np.int32[seq_len + 1]``.

    Its position is a document's position and an offset into the document's tokens, so the state is a few numbers. On
    resuming, the document is read and tokenized again. A finite stream ends with up to ``seq_len`` tokens unused.
    """

    def __init__(self, documents: TokenStream, *, seq_len: int) -> None:
        assert seq_len >= 1
        self._documents = documents
        self._size = seq_len + 1
        self._queue: deque[tuple[State, np.ndarray]] = deque()  # a document's position and its tokens
        self._queued = 0  # tokens in the queue after the offset
        self._offset = 0  # into the first document of the queue

    def __iter__(self) -> "Packer":
        return self

    def __next__(self) -> np.ndarray:
        while self._queued < self._size:
            self._pull()
        block = np.empty(self._size, dtype=np.int32)
        filled, start = 0, self._offset
        for _, ids in self._queue:
            taken = ids[start : start + self._size - filled]
            block[filled : filled + len(taken)] = taken
            filled += len(taken)
            start = 0
            if filled == self._size:
                break
        self._advance(self._size - 1)
        return block

    def _pull(self) -> None:
        """Queue one more document. StopIteration is passed on and leaves the state unchanged."""
        state = self._documents.state_dict()
        ids = next(self._documents)
        self._queue.append((state, ids))
        self._queued += len(ids)

    def _advance(self, count: int) -> None:
        self._queued -= count
        self._offset += count
        while self._queue and self._offset >= len(self._queue[0][1]):
            self._offset -= len(self._queue.popleft()[1])

    @property
    def seq_len(self) -> int:
        """Tokens of a block that are predicted."""
        return self._size - 1

    @property
    def queued(self) -> int:
        """Tokens in the queue, which do not fill a block yet."""
        return self._queued

    @property
    def epoch(self) -> int:
        """The epoch of the last document that was read."""
        return latest_epoch(self._documents.state_dict())

    def state_dict(self) -> State:
        documents = self._queue[0][0] if self._queue else self._documents.state_dict()
        return {"documents": documents, "offset": self._offset}

    def load_state_dict(self, state: State) -> None:
        self._documents.load_state_dict(state["documents"])
        self._queue.clear()
        self._queued = self._offset = 0
        if state["offset"]:
            self._pull()
            self._advance(state["offset"])


def document_starts(ids_BT: np.ndarray, eot_id: int) -> np.ndarray:
    """For every position the index of its document's first position within the block, ``np.int32[B, T]``.

    A document begins at position 0 and after each end-of-text token. The token itself still belongs to the document
    that it ends. Position ``t`` may attend to positions ``starts[t] <= s <= t``, all in its document.
    """
    n_blocks, length = ids_BT.shape
    starts_BT = np.zeros((n_blocks, length), dtype=np.int32)
    after = np.arange(1, length, dtype=np.int32)
    starts_BT[:, 1:] = np.where(ids_BT[:, :-1] == eot_id, after, 0)
    return np.maximum.accumulate(starts_BT, axis=1)
