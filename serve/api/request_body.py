"""Reading a request's body, with limits on its size, its time, and the memory of all bodies together."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from slm.serve.api.errors import ApiError, overloaded

_SHORT = 64 << 10
"""Bytes of a body that takes no room: as much as uvicorn buffers for every connection in any case."""
_ROOM = 64 << 20
"""Bytes of all longer bodies together, or four of the longest."""
_KEY = "slm.body_lease"

_LINGER_S = 5.0
"""How long the rest of a body that is too long is read and thrown away before the answer."""


class BodyRoom:
    """ASGI middleware: thousands of connections cannot fill the memory with bodies of megabytes before they are
    admitted. A longer body is read when there is room for it, and keeps its room until the response has ended."""

    def __init__(self, app: ASGIApp, *, max_bytes: int) -> None:
        self._app = app
        self._free = max(_ROOM, 4 * max_bytes)
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        lease = scope[_KEY] = _Lease(self)
        try:
            await self._app(scope, receive, send)
        finally:
            self.give(lease.n_bytes)

    async def take(self, n: int) -> None:
        """Waits until there is room, in order of arrival."""
        self._waiting.append((n, granted := asyncio.get_running_loop().create_future()))
        self.give(0)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.give(n)
            raise

    def give(self, n: int) -> None:
        """Takes room back, and hands it to those who wait."""
        self._free += n
        while self._waiting and (self._waiting[0][1].cancelled() or self._waiting[0][0] <= self._free):
            wanted, granted = self._waiting.popleft()
            if not granted.cancelled():
                self._free -= wanted
                granted.set_result(None)


class _Lease:
    """The room that a request has."""

    def __init__(self, room: BodyRoom) -> None:
        self._room, self.n_bytes = room, 0

    async def take(self, n: int) -> None:
        await self._room.take(n)
        self.n_bytes += n


async def read_body(request: Request, *, max_bytes: int, timeout_s: float) -> bytes:
    """The body. Raises ``ApiError`` 413 when it is longer than ``max_bytes``, 408 when it takes longer than
    ``timeout_s`` seconds, 503 when there is no room for it in that time."""
    too_long = ApiError(
        413, f"The body is longer than {max_bytes} bytes.", code="body_too_large", headers={"Connection": "close"}
    )
    claimed = request.headers.get("content-length", "")
    if claimed.isdigit() and (len(claimed) > 18 or int(claimed) > max_bytes):
        # A client that asked before sending has sent nothing yet.
        if "100-continue" not in request.headers.get("expect", "").lower():
            await _discard(request.stream(), timeout_s)
        raise too_long
    n_most = int(claimed) if claimed.isdigit() else max_bytes
    if n_most > _SHORT:
        try:
            async with asyncio.timeout(timeout_s):
                await request.scope[_KEY].take(n_most)
        except TimeoutError:
            raise overloaded("Too many long requests at once; try again in a few seconds.") from None
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(timeout_s):
            async for chunk in (stream := request.stream()):
                size += len(chunk)
                if size > max_bytes:
                    chunks.clear()
                    await _discard(stream, timeout_s)
                    raise too_long
                chunks.append(chunk)
    except TimeoutError:
        message = f"The body did not arrive within {timeout_s:g} seconds."
        raise ApiError(408, message, code="timeout", headers={"Connection": "close"}) from None
    return b"".join(chunks)


async def _discard(stream: AsyncIterator[bytes], timeout_s: float) -> None:
    """Reads on for a while: a client that is still sending when the connection is closed never sees the answer."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(min(timeout_s, _LINGER_S)):
            async for _ in stream:
                pass
