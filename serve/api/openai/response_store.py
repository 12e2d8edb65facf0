"""The newest responses of /v1/responses, so that a request can go on from one by its id. In memory, and bounded.

Tested in tests/serve/api/openai/test_response_store.py.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slm.serve.api.core.messages import Message
from slm.serve.api.errors import ApiError

MOST_RESPONSES = 1000
MOST_BYTES = 64 << 20
"""Most bytes of stored conversations. A conversation counts once for each of its responses."""


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A response, and the conversation up to its end without the instructions, which are each request's own."""

    owner: int | None
    """The number of the key that asked for it; no other key finds it."""
    body: Mapping[str, Any]
    messages: tuple[Message, ...]

    @property
    def n_bytes(self) -> int:
        """An estimate: the text, and a kibibyte for what is around it."""
        return 1024 + sum(256 + len(each.model_dump_json(exclude_none=True)) for each in self.messages)


class ResponseStore:
    """Forgets the oldest responses first."""

    def __init__(self) -> None:
        self._stored: OrderedDict[str, tuple[Stored, int]] = OrderedDict()
        self._n_bytes = 0

    def put(self, stored: Stored) -> None:
        """Keeps a response under its id, for as long as there is room. One that is larger than all the room is not
        kept."""
        n_bytes = stored.n_bytes
        self._stored[stored.body["id"]] = stored, n_bytes
        self._n_bytes += n_bytes
        while self._n_bytes > MOST_BYTES or len(self._stored) > MOST_RESPONSES:
            _, (_, freed) = self._stored.popitem(last=False)
            self._n_bytes -= freed

    def get(self, key: str, owner: int | None, *, param: str | None = None) -> Stored:
        """Raises ``ApiError`` for an id that is not kept: 404, or 400 where it came from a field, ``param``."""
        found = self._stored.get(key)
        if found is None or found[0].owner != owner:
            message = f"There is no response {key[:100]!r} here: this server keeps the newest {MOST_RESPONSES} in "
            message += "memory, up to 64 MiB, until it ends, and none that was made with store=false. Send the whole "
            message += "conversation in input instead."
            raise ApiError(400 if param else 404, message, param=param, code="previous_response_not_found")
        return found[0]

    def delete(self, key: str, owner: int | None) -> None:
        """Forgets a response. Raises ``ApiError`` 404 for an id that is not kept."""
        self.get(key, owner)
        self._n_bytes -= self._stored.pop(key)[1]
