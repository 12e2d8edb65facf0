"""Reading a request's body, with limits on its size and its time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.requests import Request

from slm.serve.api.errors import ApiError

_LINGER_S = 5.0
"""How long the rest of a body that is too long is read and thrown away before the answer."""


async def read_body(request: Request, *, max_bytes: int, timeout_s: float) -> bytes:
    """The body. Raises ``ApiError`` 413 when it is longer than ``max_bytes``, 408 when it takes longer than
    ``timeout_s`` seconds."""
    too_long = ApiError(
        413, f"The body is longer than {max_bytes} bytes.", code="body_too_large", headers={"Connection": "close"}
    )
    claimed = request.headers.get("content-length", "")
    if claimed.isdigit() and (len(claimed) > 18 or int(claimed) > max_bytes):
        # A client that asked before sending has sent nothing yet.
        if "100-continue" not in request.headers.get("expect", "").lower():
            await _discard(request.stream(), timeout_s)
        raise too_long
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
