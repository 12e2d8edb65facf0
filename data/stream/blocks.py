"""Streams of blocks: shuffled in groups, and shared out among the shards that read the same text."""

import random

import numpy as np

from data.sources.document_stream import ResumableStream, State
from data.stream.packing import Packer

FIRST_GROUP, LARGEST_GROUP = 1 << 20, 1 << 22
"""Tokens that are shuffled together at the start of a run, in half a second of tokenizing, and later: each group has
twice those of the one before, up to 4M tokens (16 MB of memory, 2 s of tokenizing)."""
OLD_GROUP = 1 << 19
"""Tokens of a group in the states of runs that have no size in them."""


class ShuffledBlocks:
    """Blocks in consecutive groups, each group in a random order drawn from ``seed``.

    A group ends where an epoch ends. So a step's blocks are of many documents, and those of one document are spread
    over many steps, which teaches more than as many blocks in the text's order. The state is the group's start and size
    and an index into it; resuming reads one group again. A position of the packer alone, which older runs saved, is
    the start of a group.
    """

    def __init__(self, inner: Packer, *, seed: str) -> None:
        self._inner = inner
        self._seed = seed
        self._number = 0  # of the group
        self._size = self._size_of(0)  # blocks at most
        self._start: State = inner.state_dict()
        self._group: list[np.ndarray] = []
        self._index = 0

    def _size_of(self, number: int) -> int:
        return max(1, min(LARGEST_GROUP, FIRST_GROUP << min(number, 32)) // self._inner.seq_len)

    def __next__(self) -> np.ndarray:
        if self._index == len(self._group):
            start, number = self._inner.state_dict(), self._number + bool(self._group)
            size = self._size_of(number)
            group = self._fill(number, size)
            self._number, self._size, self._start, self._group, self._index = number, size, start, group, 0
        self._index += 1
        return self._group[self._index - 1]

    def _fill(self, number: int, size: int) -> list[np.ndarray]:
        """The next group; StopIteration where there is no further block."""
        group = [next(self._inner)]
        epoch = self._inner.epoch
        while len(group) < size and self._inner.epoch == epoch:
            try:
                group.append(next(self._inner))
            except StopIteration:
                break
        random.Random(f"{self._seed}/{number}").shuffle(group)
        return group

    def state_dict(self) -> State:
        if self._group and self._index == len(self._group):
            return {"group": self._number + 1, "index": 0, "start": self._inner.state_dict()}
        return {"group": self._number, "size": self._size, "index": self._index, "start": self._start}

    def load_state_dict(self, state: State) -> None:
        if "start" not in state:
            state = {"group": 0, "index": 0, "start": state}
        self._inner.load_state_dict(state["start"])
        self._number, self._start = state["group"], state["start"]
        self._group, self._index = [], state["index"]
        if state["index"]:
            self._size = state.get("size") or max(1, OLD_GROUP // self._inner.seq_len)
            self._group = self._fill(self._number, self._size)


class EveryNth:
    """One shard's share of the blocks that all ``n`` shards read: every ``n``-th, from number ``index`` on."""

    def __init__(self, inner: ResumableStream[np.ndarray], *, index: int, n: int) -> None:
        self._inner = inner
        self._index, self._n = index, n
        self._number = 0  # of the inner stream's next block

    def __next__(self) -> np.ndarray:
        while True:
            block = next(self._inner)
            mine = self._number % self._n == self._index
            self._number += 1
            if mine:
                return block

    def state_dict(self) -> State:
        return {"number": self._number, "at": self._inner.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self._inner.load_state_dict(state["at"])
        self._number = state["number"]
