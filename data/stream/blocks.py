"""Streams of blocks: shuffled in groups, and shared out among the shards that read the same text."""

import random

import numpy as np

from slm.data.sources.document_stream import ResumableStream, State
from slm.data.stream.packing import Packer

FIRST_GROUP, LARGEST_GROUP = 1 << 20, 1 << 22
"""Tokens that are shuffled together at the start of a run, in half a second of tokenizing, and later: each group has
twice those of the one before, up to 4M tokens (16 MB of memory, 2 s of tokenizing)."""


class ShuffledBlocks:
    """Blocks in consecutive groups, each group in a random order drawn from ``seed``.

    A group ends where an epoch ends. So a step's blocks are of many documents, and those of one document are spread
    over many steps, which teaches more than as many blocks in the text's order. The state is the group's start and an
    index into it; resuming reads one group again.
    """

    def __init__(self, inner: Packer, *, seed: str) -> None:
        self._inner = inner
        self._seed = seed
        self._number = 0  # of the group
        self._start: State = inner.state_dict()
        self._group: list[np.ndarray] = []
        self._index = 0

    def __next__(self) -> np.ndarray:
        if self._index == len(self._group):
            start = self._inner.state_dict()
            group = self._fill(self._number + bool(self._group))
            self._number += bool(self._group)
            self._start, self._group, self._index = start, group, 0
        self._index += 1
        return self._group[self._index - 1]

    def _fill(self, number: int) -> list[np.ndarray]:
        """The next group; StopIteration where there is no further block."""
        tokens = min(LARGEST_GROUP, FIRST_GROUP << min(number, 32))
        size = max(1, tokens // self._inner.seq_len)
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
        return {"group": self._number, "index": self._index, "start": self._start}

    def load_state_dict(self, state: State) -> None:
        self._inner.load_state_dict(state["start"])
        self._number, self._start = state["group"], state["start"]
        self._group, self._index = [], state["index"]
        if state["index"]:
            self._group = self._fill(self._number)


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
