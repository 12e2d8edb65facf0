"""Documents in, blocks of tokens out: nothing padded, nothing lost.

Documents follow each other with the end-of-text token after each. A block holds ``seq_len + 1`` tokens and its
last token is the first of the next block, so inputs ``block[:-1]`` and targets ``block[1:]`` predict every token
of the stream exactly once.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

State = dict[str, Any]


class DocumentStream(Protocol):
    """Documents in an order that can be left and taken up again.

    ``state_dict()`` is the position before the next document, small and JSON-serialisable; a fresh stream of the
    same arguments that loads it gives the same documents from there on.
    """

    def __next__(self) -> str: ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...


class Packer:
    """An iterator of blocks, ``np.int32[seq_len + 1]``.

    The position is a document's and an offset into its tokens, so the state stays a few numbers: the document is
    read and tokenized again on resuming. A finite stream ends with up to ``seq_len`` tokens unused.
    """

    def __init__(
        self, documents: DocumentStream, encode: Callable[[str], list[int]], *, seq_len: int, eot_id: int
    ) -> None:
        assert seq_len >= 1
        self._documents = documents
        self._encode = encode
        self._size = seq_len + 1
        self._eot_id = eot_id
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
        text = next(self._documents)
        ids = np.array([*self._encode(text), self._eot_id], dtype=np.int32)
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
