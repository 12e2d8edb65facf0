"""Streams that can be left and resumed: the types that sources, the token cache and the packer share.

Tested in tests/data/sources/test_mixture.py.
"""

from typing import Any, Protocol, TypeVar

import numpy as np

State = dict[str, Any]
"""A position in a stream, small and JSON-serialisable."""


class Encoded:
    """A tokenized document, as the token cache keeps it. ``len`` is the length of its text in characters."""

    __slots__ = ("chars", "ids")

    def __init__(self, ids: np.ndarray, chars: int) -> None:
        self.ids = ids
        self.chars = chars

    def __len__(self) -> int:
        return self.chars


Document = str | Encoded
"""A document is text, or its token ids where the token cache has them."""

Doc = TypeVar("Doc", bound=Document)
ItemT_co = TypeVar("ItemT_co", covariant=True)


class ResumableStream(Protocol[ItemT_co]):
    """Items in an order that can be left and resumed.

    ``state_dict()`` is the position before the next item. A new stream with the same arguments that loads it gives
    the same items from there on.
    """

    def __next__(self) -> ItemT_co: ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...


TextStream = ResumableStream[str]
DocumentStream = ResumableStream[Document]
TokenStream = ResumableStream[np.ndarray]
"""Documents as token ids, ``np.int32[n]`` with the end-of-text token last."""
