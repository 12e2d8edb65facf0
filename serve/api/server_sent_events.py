"""Server-sent events: their encoding, and the HTTP response that streams them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from slm.serve.api.disconnects import unless_disconnected

DONE = b"data: [DONE]\n\n"
"""OpenAI's last event of a stream that succeeded."""

# One encoder for all: `json.dumps` with its own options makes a new one for every call.
_encode_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def encode_event(value: Any, name: str | None = None) -> bytes:
    """One event with ``value`` as JSON."""
    head = f"event: {name}\ndata: " if name else "data: "
    # Half of a surrogate pair may be in what a response repeats of its request.
    return f"{head}{_encode_json(value)}\n\n".encode("utf-8", "replace")


class EventStream(Response):
    """A response of server-sent events (or what ``media_type`` says). ``events`` gives encoded ones; ``on_end`` is
    called however the stream ends.

    The stream is given up when its reader takes nothing for ``write_timeout_s`` seconds.
    """

    def __init__(
        self,
        events: AsyncIterator[bytes],
        *,
        on_end: Callable[[], None],
        write_timeout_s: float,
        media_type: str = "text/event-stream",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        unbuffered = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(headers=unbuffered | dict(headers or {}), media_type=media_type)
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
