"""Documents in, blocks of tokens out: nothing padded, nothing lost.

Documents follow each other with the end-of-text token after each. A block holds ``seq_len + 1`` tokens and its
last token is the first of the next block, so inputs ``block[:-1]`` and targets ``block[1:]`` predict every token
of the stream exactly once.

Shape suffixes: B blocks, T positions.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

State = dict[str, Any]


class Encoded:
    """A document that is tokenized already, as the cache keeps it. Its length is its text's, in characters."""

    __slots__ = ("chars", "ids")

    def __init__(self, ids: np.ndarray, chars: int) -> None:
        self.ids = ids
        self.chars = chars

    def __len__(self) -> int:
        return self.chars


Document = str | Encoded


class DocumentStream(Protocol):
    """Documents in an order that can be left and taken up again.

    ``state_dict()`` is the position before the next document, small and JSON-serialisable; a fresh stream of the
    same arguments that loads it gives the same documents from there on.
    """

    def __next__(self) -> Document: ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...


class TokenStream(Protocol):
    """The same for documents as token ids, ``np.int32[n]`` with the end-of-text token last."""

    def __next__(self) -> np.ndarray: ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...


class Tokenized:
    """A document stream's tokens. Its position is the documents'."""

    def __init__(self, documents: DocumentStream, encode: Callable[[str], Sequence[int]], *, eot_id: int) -> None:
        self._documents = documents
        self._encode = encode
        self._eot_id = eot_id

    def __next__(self) -> np.ndarray:
        document = next(self._documents)
        ids = document.ids if isinstance(document, Encoded) else self._encode(document)
        tokens = np.empty(len(ids) + 1, dtype=np.int32)
        tokens[:-1] = ids
        tokens[-1] = self._eot_id
        return tokens

    def state_dict(self) -> State:
        return self._documents.state_dict()

    def load_state_dict(self, state: State) -> None:
        self._documents.load_state_dict(state)


class Packer:
    """An iterator of blocks, ``np.int32[seq_len + 1]``.

    The position is a document's and an offset into its tokens, so the state stays a few numbers: the document is
    read and tokenized again on resuming. A finite stream ends with up to ``seq_len`` tokens unused.
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
            part = ids[start : start + self._size - filled]
            block[filled : filled + len(part)] = part
            filled += len(part)
            start = 0
            if filled == self._size:
                break
        self._advance(self._size - 1)
        return block

    def _pull(self) -> None:
        """Queue one more document; StopIteration passes through and leaves the state as it was."""
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
    def queued(self) -> int:
        """Tokens waiting that do not fill a block yet."""
        return self._queued

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

    A document begins at position 0 and after each end-of-text token, which still belongs to the document that it
    ends. Position ``t`` may attend to ``s <= t`` of its own document where ``s >= starts[t]``.
    """
    n_blocks, length = ids_BT.shape
    starts_BT = np.zeros((n_blocks, length), dtype=np.int32)
    after = np.arange(1, length, dtype=np.int32)
    starts_BT[:, 1:] = np.where(ids_BT[:, :-1] == eot_id, after, 0)
    return np.maximum.accumulate(starts_BT, axis=1)
