"""The application: routes, keys, errors in OpenAI's form, and the access log around them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp

from serve.access import AccessLog, Writer, record_of
from serve.config import ServerOptions
from serve.errors import ApiError, engine_down, not_loaded, queue_full, request_failed
from serve.http import RequireKey
from serve.page import add_page, is_page
from serve.pool import ModelNotLoadedError, Pool
from serve.routes import Routes
from serve.ticket import EngineDownError, QueueFullError, RequestFailedError


def make_app(pool: Pool, options: ServerOptions, *, keys: list[str]) -> ASGIApp:
    """The application over a started pool of models, which it closes when it ends. Raises `UserError` when the
    access log cannot be opened."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await pool.close()

    app = FastAPI(title="slm", lifespan=lifespan, openapi_url=None, docs_url=None, redoc_url=None)
    if keys:
        app.add_middleware(RequireKey, keys=keys, is_open=lambda path: path == "/health" or is_page(path))
    if options.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=options.cors_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["x-request-id"],
        )
    _answer_errors(app)
    Routes(pool, options, keyed=bool(keys)).add_to(app)
    add_page(app)
    form = options.access_form
    writer = None if form == "off" else Writer(form, options.access_log_file)
    return AccessLog(app, write=writer)


def _answer_errors(app: FastAPI) -> None:
    def answer(request: Request, error: ApiError) -> Response:
        record_of(request.scope).error = error.body["error"]["code"] or str(error.status)
        return error.response()

    @app.exception_handler(ApiError)
    async def _(request: Request, error: ApiError) -> Response:
        return answer(request, error)

    @app.exception_handler(RequestFailedError)
    async def _(request: Request, error: RequestFailedError) -> Response:
        return answer(request, request_failed(error))

    @app.exception_handler(QueueFullError)
    async def _(request: Request, error: QueueFullError) -> Response:
        return answer(request, queue_full(str(error)))

    @app.exception_handler(EngineDownError)
    async def _(request: Request, error: EngineDownError) -> Response:
        return answer(request, engine_down(str(error)))

    @app.exception_handler(ModelNotLoadedError)
    async def _(request: Request, error: ModelNotLoadedError) -> Response:
        return answer(request, not_loaded(str(error)))

    @app.exception_handler(ClientDisconnect)
    async def _(_: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=499)  # nobody reads it

    @app.exception_handler(HTTPException)
    async def _(request: Request, error: HTTPException) -> Response:
        message = f"{request.method} {request.url.path[:200]}: {error.detail}."
        return answer(request, ApiError(error.status_code, message, headers=error.headers))

    @app.exception_handler(Exception)
    async def _(request: Request, error: Exception) -> Response:
        # Starlette re-raises it afterwards, so that the traceback is in the log.
        message = f"The server made a mistake; its log has more (request {record_of(request.scope).id})."
        return answer(request, ApiError(500, message, type="server_error"))
