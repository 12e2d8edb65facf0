"""From conversations to blocks: each one whole and in one block, none sees another, as little padding as fits.

A conversation's beginning is what its questions are about, so it is not cut like a text. Conversations are taken in
groups, and within a group the longest are placed first, each where it leaves the least room. What stays free is padded
with tokens that are not scored.

Shape suffixes: none; arrays are tokens with their marks (``slm.data.stream.marks``).
"""

import random
from collections.abc import Sequence

import numpy as np

from slm.data.chat.template import TemplateRefusesError
from slm.data.chat.tokens import ChatEncoder
from slm.data.errors import UserError
from slm.data.sources.document_stream import DocumentStream, ResumableStream, State, TokenStream
from slm.data.stream import marks

GROUP_BLOCKS = 64
"""How many blocks' worth of tokens a group has, about."""
LENGTH_MULTIPLE = 32
"""Blocks that are as long as what is in them have a multiple of this many positions: few shapes, and whole tiles."""
MOST_WITHOUT_ANSWER = 10_000
"""A run ends after as many records in a row without an answer that fits."""


Part = tuple[np.ndarray, np.ndarray]
"""A conversation's ids, and which of them are scored."""


def in_block(parts: Sequence[Part], size: int) -> list[Part] | None:
    """What a block of ``size`` tokens takes of a conversation, or of the two of a pair, which then have half of it each
    where they are too long together. None where one of them has no answer in that part."""
    room = size // len(parts) if sum(len(ids) for ids, _ in parts) > size else size
    cut = [(ids[:room], scored[:room]) for ids, scored in parts]
    return cut if all(scored[1:].any() for _, scored in cut) else None


def n_blocks(lengths: Sequence[int], size: int) -> int:
    """The blocks that conversations of these lengths fill, packed as ``ConversationPacker`` does.

    ``size``: the tokens that several share at most. A longer conversation has its own block.
    """
    blocks, group = 0, list[int]()
    for length in [*lengths, 0]:
        group.append(length)
        if sum(group) >= GROUP_BLOCKS * size or length == 0:
            blocks += len(place([np.empty(each, np.int8) for each in group if each], size, different=True))
            group = []
    return blocks


class Conversations:
    """A stream of conversations as marked tokens. Its position is the documents' position.

    A conversation longer than a block keeps its beginning. One without a scored token in it is left out, as is one that
    the template refuses. UserError after a long row of them without any other.
    """

    def __init__(self, documents: DocumentStream, encoder: ChatEncoder, *, seq_len: int) -> None:
        self._documents = documents
        self._encoder = encoder
        self._size = seq_len + 1

    def __next__(self) -> np.ndarray:
        for _ in range(MOST_WITHOUT_ANSWER):
            document = next(self._documents)
            assert isinstance(document, str)  # conversations are not cached
            try:
                parts = self._parts(document)
            except TemplateRefusesError:
                continue
            if parts and (fitting := in_block(parts, self._size)):
                return np.concatenate([marks.mark(ids, scored) for ids, scored in fitting])
        raise UserError(self._without_answer(f"train.seq_len={self._size - 1}"))

    def _parts(self, record: str) -> Sequence[Part]:
        """What of the record is learned together; nothing where the record is of another kind."""
        ids, scored, _ = self._encoder.conversation(record)
        return [(ids, scored)]

    def _without_answer(self, seq_len: str) -> str:
        return (
            f"{MOST_WITHOUT_ANSWER:,} conversations in a row have no answer in their first {seq_len} tokens, or are "
            "refused by the chat template: raise train.seq_len (make data-stats shows both)"
        )

    def state_dict(self) -> State:
        return self._documents.state_dict()

    def load_state_dict(self, state: State) -> None:
        self._documents.load_state_dict(state)


class Pairs(Conversations):
    """A stream of preference pairs as marked tokens: the conversation with the chosen answer, then the rejected one's.

    Only the answers are scored, not what the assistant said before them. A pair longer than a block keeps the
    beginnings of both conversations, half a block of each. One without a scored token in both is left out, as are
    records that are no pairs.
    """

    def _parts(self, record: str) -> Sequence[Part]:
        return self._encoder.pair(record) or ()

    def _without_answer(self, seq_len: str) -> str:
        return (
            f"{MOST_WITHOUT_ANSWER:,} records in a row hold no pair of answers that fits {seq_len}: preference.loss "
            "needs the fields prompt, chosen and rejected"
        )


class Pieces:
    """Plain text that is mixed with conversations, all tokens scored. A document longer than a block is cut in pieces.

    Its position is a document's position and an offset into the document's tokens.
    """

    def __init__(self, documents: ResumableStream[np.ndarray], *, seq_len: int) -> None:
        self._documents = documents
        self._size = seq_len + 1
        self._start: State = documents.state_dict()  # the document's position
        self._ids = np.empty(0, dtype=np.int32)
        self._offset = 0

    def __next__(self) -> np.ndarray:
        if self._offset == len(self._ids):
            start = self._documents.state_dict()
            self._ids, self._start, self._offset = next(self._documents), start, 0
        piece = self._ids[self._offset : self._offset + self._size]
        self._offset += len(piece)
        return marks.mark(piece, np.ones(len(piece), dtype=bool))

    def state_dict(self) -> State:
        if self._offset == len(self._ids):
            return {"documents": self._documents.state_dict(), "offset": 0}
        return {"documents": self._start, "offset": self._offset}

    def load_state_dict(self, state: State) -> None:
        start, offset = state["documents"], state["offset"]
        self._documents.load_state_dict(start)
        self._ids, self._start, self._offset = self._ids[:0], start, offset
        if offset:
            self._ids = next(self._documents)


class ConversationPacker:
    """An iterator of blocks, ``np.int32[seq_len + 1]`` with marks.

    ``room``: most tokens of a block that conversations share (None: ``seq_len``). A longer one has its own block,
    and each block is only as long as what is in it, in steps of ``LENGTH_MULTIPLE``.

    Its position is the group's first conversation and the number of the block in the group, so the state is a few
    numbers. On resuming, the group is read again. A finite stream ends with its last conversation.
    """

    def __init__(
        self, conversations: TokenStream, *, seq_len: int, padding: int, seed: str, room: int | None = None
    ) -> None:
        assert seq_len >= 1
        self._conversations = conversations
        self._size = seq_len + 1
        self._cut = room is not None
        self._room = min(self._size, seq_len + 1 if room is None else room + 1)
        self._padding = padding
        self._seed = seed
        self._number = 0  # of the group
        self._start: State = conversations.state_dict()
        self._blocks: list[np.ndarray] | None = None
        self._index = 0

    def __iter__(self) -> "ConversationPacker":
        return self

    def __next__(self) -> np.ndarray:
        if self._blocks is not None and self._index == len(self._blocks):
            self._number += 1
            self._start, self._blocks, self._index = self._conversations.state_dict(), None, 0
        if self._blocks is None:
            self._blocks = self._fill()
        if not self._blocks:
            self._blocks = None
            raise StopIteration
        block = self._blocks[self._index]
        self._index += 1
        return block

    def _fill(self) -> list[np.ndarray]:
        """The blocks of one group, in a random order: the long conversations must not all come first."""
        group: list[np.ndarray] = []
        tokens = 0
        while tokens < GROUP_BLOCKS * self._room:
            try:
                conversation = next(self._conversations)
            except StopIteration:
                break
            group.append(conversation)
            tokens += len(conversation)
        blocks = [self._block(each) for each in place(group, self._room)]
        random.Random(f"{self._seed}/{self._number}").shuffle(blocks)
        return blocks

    def _block(self, conversations: list[np.ndarray]) -> np.ndarray:
        used = sum(map(len, conversations))
        size = min(self._size, 1 - (1 - used) // LENGTH_MULTIPLE * LENGTH_MULTIPLE) if self._cut else self._size
        left = size - used
        padding = marks.mark(np.full(left, self._padding), np.zeros(left, dtype=bool))
        return np.concatenate([*conversations, padding]).astype(np.int32)

    @property
    def queued(self) -> int:
        """Tokens that do not fill a block yet: none, since what is left over is padded."""
        return 0

    def state_dict(self) -> State:
        if self._blocks is not None and self._index == len(self._blocks):
            return {"group": self._number + 1, "index": 0, "start": self._conversations.state_dict()}
        return {"group": self._number, "index": self._index, "start": self._start}

    def load_state_dict(self, state: State) -> None:
        self._conversations.load_state_dict(state["start"])
        self._number, self._start = state["group"], state["start"]
        self._blocks, self._index = None, 0
        if state["index"]:
            self._blocks = self._fill()
            self._index = state["index"]


def place(items: list[np.ndarray], size: int, *, different: bool = False) -> list[list[np.ndarray]]:
    """The items in as few bins of ``size`` tokens as best-fit decreasing finds. A longer item has its own bin.

    No two in a bin are the same: a conversation twice in an update teaches no more than once. ``different``: all are
    different, so their contents are not looked at.
    """
    bins: list[list[np.ndarray]] = []
    room: list[int] = []
    held: list[set[int]] = []
    for item in sorted(items, key=len, reverse=True):
        key = id(item) if different else hash(item.tobytes())
        fitting = [index for index, left in enumerate(room) if left >= len(item) and key not in held[index]]
        if fitting:
            chosen = min(fitting, key=room.__getitem__)
            bins[chosen].append(item)
            room[chosen] -= len(item)
            held[chosen].add(key)
        else:
            bins.append([item])
            room.append(size - len(item))
            held.append({key})
    return bins
