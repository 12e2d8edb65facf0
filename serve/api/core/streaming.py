"""From the engine's events of a request to its response, whole or streamed as server-sent events, for as long as the
client is there.

Tested in tests/serve/api/core/test_streaming.py, tests/serve/api/test_server_sent_events.py,
tests/serve/api/test_disconnects.py, tests/serve/test_server.py, tests/serve/test_deadlines.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from slm.serve.api.access_log import Record
from slm.serve.api.core.replies import ResponseBuilder, prompt_timings
from slm.serve.api.errors import request_failed
from slm.serve.engine.protocol import Delta, PrefillProgress
from slm.serve.pool.request_stream import RequestFailedError, RequestStream

Result = TypeVar("Result")

DONE = b"data: [DONE]\n\n"
"""OpenAI's last event of a stream that succeeded."""
PING_S = 5.0
"""While there is nothing to send, the client and what is in between hear so often that the server is at work."""
_GRACE_S = 2.0
"""The engine itself ends requests that have run out of time; an engine that hangs cannot."""


async def unless_disconnected(receive: Receive, work: Awaitable[Result]) -> Result:
    """Awaits ``work`` and returns its result. When the client leaves first, cancels it and raises
    ``ClientDisconnect``. The request's body must have been read."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        watch.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def expire_later(request_stream: RequestStream, ends_at: float | None) -> asyncio.TimerHandle | None:
    """Fails the request a while after ``ends_at`` (the loop's clock), whatever the engine does.

    The caller cancels the timer when the request has ended. None where there is no limit.
    """
    if ends_at is None:
        return None
    return asyncio.get_running_loop().call_at(ends_at + _GRACE_S, request_stream.expire)


async def collect(request_stream: RequestStream, builder: ResponseBuilder, record: Record) -> None:
    """Gives all events to the builder. Raises ``RequestFailedError``."""
    while not request_stream.done:
        for index, event in await request_stream.next_events():
            assert not isinstance(event, PrefillProgress), "only streams ask for it"
            record.add(event)
            builder.add(index, event)


async def stream(
    request_stream: RequestStream,
    builder: ResponseBuilder,
    record: Record,
    include_usage: bool,
    usage_in_chunks: bool = False,
) -> AsyncIterator[bytes]:
    """The response in chunks as the builder encodes them, with its ``ping`` in pauses.

    ``include_usage``: the last chunk has the usage. ``usage_in_chunks``: each one has the usage until then.

    What the engine reports at a time is one item, so that it is one write to the socket.
    """
    encode, warnings = builder.encode, list(builder.warnings)
    while not request_stream.done:
        try:
            async with asyncio.timeout(PING_S):
                events = await request_stream.next_events()
        except TimeoutError:
            if builder.ping:
                yield builder.ping
            continue
        except RequestFailedError as error:
            # The status has been sent, so the error becomes an event; without [DONE], which means success.
            record.error = error.code
            yield encode(builder.error_chunk(request_failed(error).body))
            return
        encoded: list[bytes] = []
        for index, event in events:
            if isinstance(event, PrefillProgress):
                chunks: Sequence[Mapping[str, Any]] = builder.progress_chunks(index, event)
                if builder.timings_per_token:
                    chunks = [{**chunk, "timings": prompt_timings(event)} for chunk in chunks]
            else:
                record.add(event)
                builder.add(index, event)
                chunks = builder.chunks(index, event)
                if usage_in_chunks:
                    chunks = [{**chunk, "usage": builder.usage()} for chunk in chunks]
                if builder.timings_per_token and isinstance(event, Delta):
                    chunks = [{**chunk, "timings": builder.timings(index)} for chunk in chunks]
            if warnings and chunks:
                chunks, warnings = [{**chunks[0], "warnings": warnings}, *chunks[1:]], []
            encoded.extend(map(encode, chunks))
        if encoded:
            yield b"".join(encoded)
    ending = (encode(builder.usage_chunk()) if include_usage else b"") + (DONE if builder.ends_in_done else b"")
    if ending:
        yield ending


class EventStream(Response):
    """A response of server-sent events (or what ``media_type`` says). ``events`` gives encoded ones; ``on_end`` is
    called however the stream ends.

    The stream is given up when its reader takes nothing for ``write_timeout_s`` seconds.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[bytes],
        *,
        on_end: Callable[[], None],
        write_timeout_s: float,
        media_type: str | None = None,
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
