"""Streams that outlive their connection: a page that is loaded again reads its reply on, from the beginning.

A client asks for it as with llama-server, by a header that names the stream. The reply then goes on while nobody reads
it, for a while, and is kept for a while after its end. In memory, and bounded.

Tested in tests/serve/api/core/test_kept_streams.py, tests/browser/test_resumed.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from slm.serve.api.errors import ApiError

HEADER = "x-conversation-id"
"""Names the stream. On a server without keys, whoever knows the name can read it."""
LONGEST_NAME = 256
ALONE_S = 10.0
"""A reply that nobody reads goes on for so long."""
KEPT_S = 300.0
"""So long it is kept after its end."""
MOST_STREAMS = 64
MOST_BYTES = 32 << 20
"""Most bytes of replies that have ended. Those that run are bounded by the engine's slots and its context."""


class KeptStream:
    """One reply. ``on_end``: called when ``events`` have ended; ``forget``: when it is not to be kept any longer."""

    def __init__(self, events: AsyncIterator[bytes], *, on_end: Callable[[], None], forget: Callable[[], None]) -> None:
        self.n_bytes = 0
        self._parts: list[bytes] = []
        self._on_end, self._forget = on_end, forget
        self._more = asyncio.Event()
        self._n_readers = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._task = asyncio.create_task(self._take(events))
        self._task.add_done_callback(lambda _: self._end())

    @property
    def ended(self) -> bool:
        return self._task.done()

    async def _take(self, events: AsyncIterator[bytes]) -> None:
        async for part in events:
            self._parts.append(part)
            self.n_bytes += len(part)
            self._tell()

    def _end(self) -> None:
        self._on_end()
        self._tell()
        self._set_timer()

    def _tell(self) -> None:
        self._more.set()
        self._more = asyncio.Event()

    def read(self, skip: int = 0) -> AsyncIterator[bytes]:
        """What comes after the first ``skip`` bytes, as it comes. ``left`` must be called after it."""
        self._n_readers += 1
        self._set_timer()
        return self._read(skip)

    async def _read(self, skip: int) -> AsyncIterator[bytes]:
        at = 0
        while not self.ended or at < len(self._parts):
            if at == len(self._parts):
                await self._more.wait()
                continue
            new, at = b"".join(self._parts[at:]), len(self._parts)
            if rest := new[skip:]:
                yield rest
            skip = max(skip - len(new), 0)
        if not self._task.cancelled():
            self._task.result()  # a fault of ours is told where the server tells faults

    def left(self) -> None:
        """A reader is gone."""
        self._n_readers -= 1
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._is_closed and (self.ended or self._n_readers == 0):
            self._timer = asyncio.get_running_loop().call_later(KEPT_S if self.ended else ALONE_S, self._forget)

    def close(self) -> None:
        """Ends it, if it runs."""
        self._is_closed = True
        self._task.cancel()
        self._set_timer()


class KeptStreams:
    """The streams of one server by their names. All methods belong to the event loop's thread.

    ``owner``: the number of the key that asks; a stream is not there for any other.
    """

    def __init__(self) -> None:
        self._streams: dict[tuple[int | None, str], KeptStream] = {}

    def begin(
        self, name: str, owner: int | None, events: AsyncIterator[bytes], on_end: Callable[[], None]
    ) -> KeptStream | None:
        """Keeps a stream, in place of one of the same name, which ends; None where as many run as may. ``on_end``:
        called when ``events`` have ended. Raises ``ApiError``."""
        if not 1 <= len(name) <= LONGEST_NAME:
            raise ApiError(400, f"{HEADER} must have 1 to {LONGEST_NAME} characters.", code="invalid_value")
        self.delete(name, owner)
        self._make_room(MOST_STREAMS - 1)
        if len(self._streams) >= MOST_STREAMS:
            return None

        def ended() -> None:
            on_end()
            self._make_room(MOST_STREAMS)

        kept = KeptStream(events, on_end=ended, forget=lambda: self.delete(name, owner))
        self._streams[owner, name] = kept
        return kept

    def _make_room(self, most: int) -> None:
        """Forgets the oldest of those that have ended."""
        over = [key for key, each in self._streams.items() if each.ended]
        while over and (
            len(self._streams) > most or sum(each.n_bytes for each in self._streams.values() if each.ended) > MOST_BYTES
        ):
            self._streams.pop(over.pop(0)).close()

    def get(self, name: str, owner: int | None) -> KeptStream:
        """Raises ``ApiError`` 404 where there is none."""
        found = self._streams.get((owner, name))
        if found is None:
            message = "The rest of this reply is gone: the server goes on with a reply that nobody reads for "
            message += f"{ALONE_S:g} seconds and keeps it for {KEPT_S / 60:g} minutes after its end, until it is "
            message += "started again."
            raise ApiError(404, message, code="stream_not_found")
        return found

    def delete(self, name: str, owner: int | None) -> None:
        """Ends a stream, if it is there and runs, and forgets it."""
        found = self._streams.pop((owner, name), None)
        if found is not None:
            found.close()
