"""The application: routes, keys, errors in OpenAI's form, and the access log around them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, ExceptionHandler

from serve.api.access_log import AccessLog, Writer, record_of
from serve.api.errors import ApiError, engine_down, not_loaded, queue_full, request_failed
from serve.api.http import RequireKey
from serve.api.routes import Routes
from serve.api.static_pages import is_page, page_routes
from serve.config import ServerOptions
from serve.pool.model_pool import ModelNotLoadedError, Pool
from serve.pool.request_stream import EngineDownError, QueueFullError, RequestFailedError


def make_app(pool: Pool, options: ServerOptions, *, keys: list[str]) -> ASGIApp:
    """The application over a started pool of models, which it closes when it ends. Raises ``UserError`` when the
    access log cannot be opened."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await pool.close()

    middleware = []
    if options.cors_origins:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=options.cors_origins,
                allow_methods=["*"],
                allow_headers=["*"],
                expose_headers=["x-request-id"],
            )
        )
    if keys:
        middleware.append(Middleware(RequireKey, keys=keys, is_open=_is_open))
    app = Starlette(
        routes=[*Routes(pool, options, keyed=bool(keys)).routes(), *page_routes()],
        middleware=middleware,
        exception_handlers=_ERRORS,
        lifespan=lifespan,
    )
    form = options.access_form
    writer = None if form == "off" else Writer(form, options.access_log_file)
    return AccessLog(app, write=writer)


def _is_open(path: str) -> bool:
    return path == "/health" or is_page(path)


def _answer(request: Request, error: ApiError) -> Response:
    record_of(request.scope).error = error.body["error"]["code"] or str(error.status)
    return error.response()


def _as(convert: Callable[[Any], ApiError]) -> ExceptionHandler:
    async def handler(request: Request, error: Exception) -> Response:
        return _answer(request, convert(error))

    return handler


async def _gone(_: Request, error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path[:200]}: {error.detail}."
    return _answer(request, ApiError(error.status_code, message, headers=error.headers))


async def _mistake(request: Request, error: Exception) -> Response:
    # Starlette re-raises it afterwards, so that the traceback is in the log.
    message = f"The server made a mistake; its log has more (request {record_of(request.scope).id})."
    return _answer(request, ApiError(500, message, type="server_error"))


_ERRORS: Mapping[Any, ExceptionHandler] = {
    ApiError: _as(lambda error: error),
    RequestFailedError: _as(request_failed),
    QueueFullError: _as(lambda error: queue_full(str(error))),
    EngineDownError: _as(lambda error: engine_down(str(error))),
    ModelNotLoadedError: _as(lambda error: not_loaded(str(error))),
    ClientDisconnect: _gone,
    HTTPException: _http,
    Exception: _mistake,
}
"""OpenAI's form for everything that goes wrong."""
