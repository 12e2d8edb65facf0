"""The parts of HTTP that know nothing of models: bodies with limits, keys, event streams, disconnects."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from serve.api.access_log import record_of
from serve.api.errors import ApiError

_LINGER_S = 5.0
"""How long the rest of a body that is too long is read, and thrown away, before the answer."""


class RequireKey:
    """ASGI middleware: 401 unless the bearer token is one of the keys, or ``is_open`` says yes to the path. Which key
    it was stands in the request's record; 0 is none."""

    def __init__(self, app: ASGIApp, *, keys: list[str], is_open: Callable[[str], bool]) -> None:
        self._app, self._keys, self._is_open = app, [key.encode() for key in keys], is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            record = record_of(scope)
            record.key = self._which(scope)
            if not record.key and not self._is_open(scope["path"]):
                message = "A key is needed: send it as `Authorization: Bearer KEY`."
                record.error = "invalid_api_key"
                error = ApiError(401, message, code=record.error, headers={"WWW-Authenticate": "Bearer"})
                await error.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _which(self, scope: Scope) -> int:
        given = dict(scope["headers"]).get(b"authorization", b"")
        scheme, _, key = given.partition(b" ")
        # Every key is compared, each in constant time, so that the time tells nothing of them.
        same = [hmac.compare_digest(key.strip(), each) for each in self._keys]
        return same.index(True) + 1 if scheme.lower() == b"bearer" and any(same) else 0


async def read_body(request: Request, *, max_bytes: int, timeout_s: float) -> bytes:
    """The body, or ``ApiError`` 413 when it is longer, 408 when it comes too slowly."""
    too_long = ApiError(
        413, f"The body is longer than {max_bytes} bytes.", code="body_too_large", headers={"Connection": "close"}
    )
    claimed = request.headers.get("content-length", "")
    if claimed.isdigit() and (len(claimed) > 18 or int(claimed) > max_bytes):
        # Who asked before sending has sent nothing yet.
        if "100-continue" not in request.headers.get("expect", "").lower():
            await _throw_away(request.stream(), timeout_s)
        raise too_long
    parts, size = [], 0
    try:
        async with asyncio.timeout(timeout_s):
            async for part in (stream := request.stream()):
                size += len(part)
                if size > max_bytes:
                    parts.clear()
                    await _throw_away(stream, timeout_s)
                    raise too_long
                parts.append(part)
    except TimeoutError:
        message = f"The body did not arrive within {timeout_s:g} seconds."
        raise ApiError(408, message, code="timeout", headers={"Connection": "close"}) from None
    return b"".join(parts)


async def _throw_away(stream: AsyncIterator[bytes], timeout_s: float) -> None:
    """Reads on for a while: a client that is still sending when the connection is closed never sees the answer."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(min(timeout_s, _LINGER_S)):
            async for _ in stream:
                pass


async def disconnected(receive: Receive) -> None:
    """Returns when the client has gone. The body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_disconnected(receive: Receive, work: Any) -> Any:
    """Awaits ``work``; when the client leaves first, cancels it and raises ``ClientDisconnect``."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(disconnected(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for each in (task, watch):
            each.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


class EventStream(Response):
    """Server-sent events. ``events`` gives bodies; ``on_end`` is called in any case, however the stream ends.

    A reader that takes nothing for ``write_timeout_s`` is given up.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], *, on_end: Callable[[], None], write_timeout_s: float) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events, self._on_end, self._write_timeout_s = events, on_end, write_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_disconnected(receive, self._send_all(send))
        except (ClientDisconnect, TimeoutError):
            pass
        finally:
            self._on_end()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for body in self._events:
            async with asyncio.timeout(self._write_timeout_s):
                await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def sse(value: Any, name: str | None = None) -> bytes:
    """One event."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


class Json(JSONResponse):
    """JSON in UTF-8."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
