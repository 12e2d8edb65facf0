"""From the engine's events of a request to its response, whole or streamed.

Tested in tests/serve/test_server.py, tests/serve/test_deadlines.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from slm.serve.api.access_log import Record
from slm.serve.api.errors import request_failed
from slm.serve.api.openai.response_builder import ResponseBuilder
from slm.serve.api.server_sent_events import DONE, encode_event
from slm.serve.engine.messages import Delta, PrefillDone
from slm.serve.pool.request_stream import RequestFailedError, RequestStream

_GRACE_S = 2.0
"""The engine ends requests whose time is over by itself; an engine that hangs cannot."""


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
            record.add(event)
            builder.add(index, event)


async def stream(
    request_stream: RequestStream,
    builder: ResponseBuilder,
    events: list[tuple[int, PrefillDone | Delta]],
    record: Record,
    include_usage: bool,
    usage_in_chunks: bool = False,
) -> AsyncIterator[bytes]:
    """The response as server-sent events. ``events`` are the first of the stream, which the caller has taken.

    ``include_usage``: the last chunk has the usage. ``usage_in_chunks``: each one has the usage until then.

    What the engine reports at a time is one item, so that it is one write to the socket.
    """

    def encode(chunk: Mapping[str, Any]) -> bytes:
        return encode_event(chunk, chunk["type"] if builder.named_events else None)

    warned = False
    while True:
        encoded: list[bytes] = []
        for index, event in events:
            record.add(event)
            builder.add(index, event)
            chunks = builder.chunks(index, event)
            if builder.warnings and not warned and chunks:
                warned = True
                chunks = [{**chunks[0], "warnings": list(builder.warnings)}, *chunks[1:]]
            if usage_in_chunks:
                chunks = [{**chunk, "usage": builder.usage()} for chunk in chunks]
            encoded.extend(map(encode, chunks))
        if encoded:
            yield b"".join(encoded)
        if request_stream.done:
            break
        try:
            events = await request_stream.next_events()
        except RequestFailedError as error:
            # The status has been sent, so the error becomes an event; without [DONE], which means success.
            record.error = error.code
            yield encode(builder.error_chunk(request_failed(error).body))
            return
    ending = (encode(builder.usage_chunk()) if include_usage else b"") + (DONE if builder.ends_in_done else b"")
    if ending:
        yield ending
