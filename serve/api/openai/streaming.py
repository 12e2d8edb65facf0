"""From a request stream's events to the body of an answer, whole or streamed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from serve.api.access_log import Record
from serve.api.errors import error_body
from serve.api.http import DONE, sse
from serve.api.openai.completions import Answer
from serve.engine.messages import Delta, PrefillDone
from serve.pool.request_stream import RequestFailedError, RequestStream

_GRACE_S = 2.0
"""The engine ends what is over its time by itself; one that hangs cannot."""


def end_in_time(request_stream: RequestStream, ends_at: float | None) -> asyncio.TimerHandle | None:
    """Fails the request some time after ``ends_at`` (the loop's clock), whatever the engine does. To be cancelled."""
    if ends_at is None:
        return None
    return asyncio.get_running_loop().call_at(ends_at + _GRACE_S, request_stream.expire)


async def collect(request_stream: RequestStream, answer: Answer, record: Record) -> None:
    """Takes all events. Raises ``RequestFailedError``."""
    while not request_stream.done:
        for index, event in await request_stream.next_events():
            record.see(event)
            answer.take(index, event)


async def stream(
    request_stream: RequestStream,
    answer: Answer,
    events: list[tuple[int, PrefillDone | Delta]],
    record: Record,
    include_usage: bool,
) -> AsyncIterator[bytes]:
    """Bodies of server-sent events; one per engine step, so that a step is one write."""

    def encode(chunk: dict[str, Any]) -> bytes:
        return sse(chunk, chunk["type"] if answer.named_events else None)

    while True:
        parts = []
        for index, event in events:
            record.see(event)
            answer.take(index, event)
            parts.extend(encode(chunk) for chunk in answer.chunks(index, event))
        if parts:
            yield b"".join(parts)
        if request_stream.done:
            break
        try:
            events = await request_stream.next_events()
        except RequestFailedError as error:
            record.error = error.code
            yield encode(answer.failure_chunk(error_body(error)))
            return  # and no [DONE]: that means success
    ending = (encode(answer.usage_chunk()) if include_usage else b"") + (DONE if answer.ends_in_done else b"")
    if ending:
        yield ending
