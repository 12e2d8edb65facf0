"""Streams made of streams: repeated, filtered, shuffled in groups, mixed by weight. All can be left and resumed."""

import random
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np

from slm.data.sources.document_stream import Doc, ResumableStream, State

GROUP_CHARS = 16 << 20  # a shuffled group holds at most about this much text
HEAD_START = 1024  # the most, in the mixture's measure, that a source is treated as having given at the start


class Repeated(Generic[Doc]):
    """Passes over a source, one after the other: ``epochs`` of them, without end where it is None.

    ``make(epoch)`` opens a pass. A pass without a single document ends the stream.
    """

    def __init__(self, make: Callable[[int], ResumableStream[Doc]], *, epochs: int | None) -> None:
        self._make = make
        self._epochs = epochs
        self.epoch = 0
        self._seen = False  # a document in this pass
        self._inner: ResumableStream[Doc] = make(0)
        self.epoch_start = self.state_dict()
        """The position at which the last pass began that this object has begun."""

    def __next__(self) -> Doc:
        while True:
            try:
                document = next(self._inner)
            except StopIteration:
                if not self._seen or self.epoch + 1 == self._epochs:
                    raise
                self.epoch += 1
                self._seen = False
                self._inner = self._make(self.epoch)
                self.epoch_start = self.state_dict()
                continue
            self._seen = True
            return document

    def state_dict(self) -> State:
        return {"epoch": self.epoch, "seen": self._seen, "at": self._inner.state_dict()}

    def load_state_dict(self, state: State) -> None:
        if state["epoch"] != self.epoch:
            self._inner = self._make(state["epoch"])
        self.epoch, self._seen = state["epoch"], state["seen"]
        self._inner.load_state_dict(state["at"])


class Filtered(Generic[Doc]):
    """The documents that ``keep`` accepts."""

    def __init__(self, inner: ResumableStream[Doc], keep: Callable[[Doc], bool]) -> None:
        self._inner = inner
        self._keep = keep

    def __next__(self) -> Doc:
        while True:
            document = next(self._inner)
            if self._keep(document):
                return document

    def state_dict(self) -> State:
        return self._inner.state_dict()

    def load_state_dict(self, state: State) -> None:
        self._inner.load_state_dict(state)


class Mapped:
    """Documents, each turned into a text by ``change``."""

    def __init__(self, inner: ResumableStream[Any], change: Callable[[Any], str]) -> None:
        self._inner = inner
        self._change = change

    def __next__(self) -> str:
        return self._change(next(self._inner))

    def state_dict(self) -> State:
        return self._inner.state_dict()

    def load_state_dict(self, state: State) -> None:
        self._inner.load_state_dict(state)


class Shuffled(Generic[Doc]):
    """Documents in consecutive groups of up to ``size``, each group in a random order drawn from ``seed``.

    Groups instead of a sliding buffer: the state is then the group's start and an index into it, whatever the size,
    and resuming reads one group again. A group ends where an epoch ends, so that each document comes once before any
    comes twice.
    """

    def __init__(self, inner: Repeated[Doc], *, size: int, seed: str) -> None:
        assert size >= 1
        self._inner = inner
        self._size = size
        self._seed = seed
        self._number = 0  # of the group
        self._start: State = inner.state_dict()
        self._group: list[Doc] | None = None
        self._index = 0
        self._ahead: Doc | None = None
        """The next epoch's first document. Reading it showed that the group's epoch had ended."""

    def __next__(self) -> Doc:
        if self._group is not None and self._index == len(self._group):
            self._number += 1
            self._start, self._group, self._index = self._position(), None, 0
        if self._group is None:
            self._group = self._fill()
        if not self._group:
            self._group = None
            raise StopIteration
        text = self._group[self._index]
        self._index += 1
        return text

    def _fill(self) -> list[Doc]:
        group: list[Doc] = []
        chars, epoch = 0, None
        while len(group) < self._size and chars < GROUP_CHARS:
            try:
                text = next(self._inner) if self._ahead is None else self._ahead
            except StopIteration:
                break
            self._ahead = None
            if group and self._inner.epoch != epoch:
                self._ahead = text
                break
            epoch = self._inner.epoch
            group.append(text)
            chars += len(text)
        random.Random(f"{self._seed}/{self._number}").shuffle(group)
        return group

    def _position(self) -> State:
        """Before the next document that is in no group yet."""
        return self._inner.state_dict() if self._ahead is None else self._inner.epoch_start

    def state_dict(self) -> State:
        if self._group is not None and self._index == len(self._group):
            return {"group": self._number + 1, "index": 0, "start": self._position()}
        return {"group": self._number, "index": self._index, "start": self._start}

    def load_state_dict(self, state: State) -> None:
        self._ahead = None
        self._inner.load_state_dict(state["start"])
        self._number, self._start = state["group"], state["start"]
        self._group, self._index = None, 0
        if state["index"]:
            self._group = self._fill()
            self._index = state["index"]


Item = TypeVar("Item", str, np.ndarray)


class Mixture(Generic[Item]):
    """Several streams interleaved so that each one's share, as ``measure`` counts an item, follows its weight.

    The next item comes from the stream that is furthest behind its share; ``seed`` only varies where each begins.
    So the shares hold over short stretches too, however long the documents are. A stream that ends drops out, and the
    others go on by their weights. The mixture ends with the last stream.
    """

    def __init__(
        self, streams: list[ResumableStream[Item]], weights: list[float], *, measure: Callable[[Item], int], seed: str
    ) -> None:
        assert len(streams) == len(weights) >= 1
        self._streams: list[ResumableStream[Item]] = streams
        self._weights = weights
        self._measure: Callable[[Item], int] = measure
        draw = random.Random(seed)
        self._given = [int(draw.random() * HEAD_START * weight / max(weights)) for weight in weights]
        self._ended = [False] * len(streams)

    def __next__(self) -> Item:
        while not all(self._ended):
            live = [i for i, ended in enumerate(self._ended) if not ended]
            chosen = min(live, key=lambda i: self._given[i] / self._weights[i])
            try:
                item = next(self._streams[chosen])
            except StopIteration:
                self._ended[chosen] = True
                continue
            self._given[chosen] += self._measure(item)
            return item
        raise StopIteration

    def state_dict(self) -> State:
        return {
            "given": list(self._given),
            "ended": list(self._ended),
            "streams": [stream.state_dict() for stream in self._streams],
        }

    def load_state_dict(self, state: State) -> None:
        self._given, self._ended = list(state["given"]), list(state["ended"])
        for stream, inner in zip(self._streams, state["streams"], strict=True):
            stream.load_state_dict(inner)


def text_bytes(text: str) -> int:
    """A measure for documents that are not tokenized: their bytes of UTF-8."""
    return len(text.encode("utf-8", "replace"))


def latest_epoch(state: Any) -> int:
    """The highest epoch anywhere in a stream's state: how often the most repeated source was started again."""
    if isinstance(state, dict):
        own = state["epoch"] if isinstance(state.get("epoch"), int) and "seen" in state else 0
        return max([own, *(latest_epoch(value) for value in state.values())])
    if isinstance(state, list):
        return max((latest_epoch(value) for value in state), default=0)
    return 0
