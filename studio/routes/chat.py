"""Chat and compare: models that are loaded, and their replies as they come.

Tested in tests/studio/test_app.py, tests/studio/test_serving.py.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from slm.data.errors import UserError
from slm.studio import serving
from slm.studio.routes.base import Studio, answer, body, studio, text, unless_gone
from slm.studio.serving import Server

SETTINGS = (
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repeat_penalty",
    "seed",
    "logprobs",
    "top_logprobs",
)
"""What a request may set of sampling."""


async def load(request: Request) -> Response:
    """Load a GGUF file; what its server says of it."""
    found = studio(request)
    path = found.places.path(text(await body(request), "path"))
    if path.is_dir():
        raise UserError(f"{path.name} is no GGUF file: export the run first")
    idle = not await asyncio.to_thread(found.queue.running)
    server = await unless_gone(request, found.servers.load(path, measure=idle))
    return answer({"id": server.id, "model": server.facts})


async def unload(request: Request) -> Response:
    """Take a model out of memory."""
    found = studio(request)
    found.servers.unload(found.servers.of(request.path_params["id"]).path)
    return answer()


async def say(request: Request) -> Response:
    """A reply to ``messages``, or what follows ``prompt``, as the server streams it."""
    values, found = await body(request), studio(request)
    server = found.servers.of(request.path_params["id"])
    kind = "chat/completions" if "messages" in values else "completions"
    wanted: dict[str, Any] = {key: values[key] for key in (*SETTINGS, "messages", "prompt") if key in values}
    client = httpx.AsyncClient(timeout=httpx.Timeout(10, read=serving.SILENT_S), trust_env=False)
    try:
        stream = client.build_request(
            "POST", f"{server.url}/v1/{kind}", headers=server.headers, json=wanted | {"stream": True}
        )
        reply = await client.send(stream, stream=True)
    except httpx.ReadTimeout:
        await client.aclose()
        found.servers.unload(server.path, hangs=True)
        raise UserError(_silent(server)) from None
    except httpx.HTTPError as error:
        await client.aclose()
        raise UserError(f"the model does not answer ({type(error).__name__}): choose it again") from None
    if reply.status_code != 200:
        content = await reply.aread()
        await client.aclose()
        return Response(content, status_code=400, media_type="application/json")
    return StreamingResponse(
        _relayed(found, client, reply, server), media_type="text/event-stream", headers={"Cache-Control": "no-store"}
    )


async def _relayed(
    found: Studio, client: httpx.AsyncClient, reply: httpx.Response, server: Server
) -> AsyncIterator[bytes]:
    """A reply as it comes. A server that computes says so every few seconds, so one that is silent for long hangs."""
    server.busy += 1
    try:
        async for chunk in reply.aiter_raw():
            yield chunk
    except httpx.ReadTimeout:
        found.servers.unload(server.path, hangs=True)
        yield b"data: " + json.dumps({"error": {"message": _silent(server)}}).encode() + b"\n\n"
    except httpx.HTTPError:
        return  # the page sees a stream without its end
    finally:
        server.busy -= 1
        server.used = time.monotonic()
        await reply.aclose()
        await client.aclose()


def _silent(server: Server) -> str:
    return f"{server.path}: nothing has come from its server for {serving.SILENT_S:.0f} s. Choose it again"


ROUTES = [
    Route("/api/chat/load", load, methods=["POST"]),
    Route("/api/chat/{id}/unload", unload, methods=["POST"]),
    Route("/api/chat/{id}/say", say, methods=["POST"]),
]
