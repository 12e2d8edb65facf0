"""Bodies over the limit. Numbers refer to the reliability list (docs/results/serving-reliability.md)."""

import asyncio

import httpx
import pytest
from starlette.requests import Request

from slm.serve.api import request_body
from slm.serve.api.errors import ApiError
from slm.serve.api.request_body import BodyRoom, read_body
from tests.helpers.sockets import PATIENCE_S, connection, everything, is_well

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"


def test_a_body_over_the_limit_is_told_and_not_torn_off(server):
    """List, 14: 413, also for a client that sends all before it reads; one that asks first sends nothing."""
    url = server.url + "/v1/completions"
    for body in (b" " * (12 << 20), (b" " * (1 << 20) for _ in range(12))):
        answer = httpx.post(url, content=body, timeout=PATIENCE_S)
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "body_too_large"
    with connection(server) as raw:
        raw.sendall(HEAD + b"Expect: 100-continue\r\nContent-Length: 99999999\r\n\r\n")
        assert everything(raw).startswith(b"HTTP/1.1 413 ")
    is_well(server)


def test_connections_cannot_fill_the_memory_with_bodies(monkeypatch):
    """100 bodies of a megabyte: as many are read at a time as there is room for, then the others."""
    monkeypatch.setattr(request_body, "_ROOM", 8 << 20)
    held, most, begun = 0, 0, asyncio.Event()

    async def scenario():
        async def app(scope, receive, send):
            nonlocal held, most
            request = Request(scope, receive)
            body = await read_body(request, max_bytes=1 << 20, timeout_s=20)
            held += len(body)
            most = max(most, held)
            await begun.wait()
            held -= len(body)

        room = BodyRoom(app, max_bytes=1 << 20)
        sent = 0

        def connection(chunked):
            async def receive():
                nonlocal sent
                sent += 1 << 20
                return {"type": "http.request", "body": b"x" * (1 << 20), "more_body": False}

            headers = [] if chunked else [(b"content-length", str(1 << 20).encode())]
            scope = {"type": "http", "method": "POST", "path": "/", "headers": headers}
            return asyncio.create_task(room(scope, receive, None))

        tasks = [connection(i % 2) for i in range(100)]
        tasks[50].cancel()
        for _ in range(20):
            await asyncio.sleep(0)
        assert sent == 8 << 20
        begun.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert sent == 99 << 20
        assert room._free == 8 << 20

    asyncio.run(scenario())
    assert most == 8 << 20


def test_no_room_in_time_is_said(monkeypatch):
    monkeypatch.setattr(request_body, "_ROOM", 4 << 20)

    async def scenario():
        room = BodyRoom(None, max_bytes=1 << 20)
        await room.take(4 << 20)
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/",
            "headers": [],
            "slm.body_lease": request_body._Lease(room),
        }
        with pytest.raises(ApiError, match="Too many long requests") as caught:
            await read_body(Request(scope), max_bytes=1 << 20, timeout_s=0.01)
        assert caught.value.status == 503
        room.give(4 << 20)
        await room.take(1)

    asyncio.run(scenario())
