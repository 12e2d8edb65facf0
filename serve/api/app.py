"""The application: routes, keys, errors in OpenAI's form, and the access log around them.

Tested in tests/serve/test_server.py, tests/serve/api/test_api_keys.py, tests/serve/test_several_models.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ExceptionHandler, Scope

from slm.serve.api import client_fields
from slm.serve.api.access_log import AccessLog, Writer, record_of
from slm.serve.api.anthropic.message_builder import error_body as anthropic_error
from slm.serve.api.api_keys import KeyLimits, RequireKey
from slm.serve.api.browser_guard import BrowserGuard
from slm.serve.api.errors import ApiError, engine_down, not_loaded, queue_full, request_failed
from slm.serve.api.ollama.builder import error_body as ollama_error
from slm.serve.api.request_body import BodyRoom
from slm.serve.api.routes.table import api_routes
from slm.serve.api.static_pages import is_page, page_routes
from slm.serve.config import ServerOptions
from slm.serve.keys import Key, Limits
from slm.serve.pool.model_pool import ModelNotLoadedError, Pool
from slm.serve.pool.request_stream import EngineDownError, QueueFullError, RequestFailedError, TooManySequencesError

_OPEN = ("/health", "/v1/health")
"""Paths that need no key."""
_OF_THIS_MACHINE = r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?"
"""The origins that ``localhost`` in ``serve.cors_origins`` stands for."""


class _Cors(CORSMiddleware):
    """A preflight that is not allowed is answered without permission, so that the browser refuses the request itself
    and names the reason, as it does with llama-server. Starlette's status of 400 reads as a fault of the server."""

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        return response if response.status_code == 200 else Response(headers={"vary": "Origin"})


def make_app(pool: Pool, options: ServerOptions, *, keys: Sequence[Key]) -> AccessLog:
    """The application over a started pool of models.

    Raises ``UserError`` when the access log cannot be opened.
    """

    middleware = []
    if options.cors_origins:
        middleware.append(
            Middleware(
                _Cors,
                allow_origins=options.cors_origins,
                allow_origin_regex=_OF_THIS_MACHINE if "localhost" in options.cors_origins else None,
                allow_methods=["GET", "POST", "DELETE", "OPTIONS"],
                # Pages that are named may send what a proxy before this server asks for; not any page.
                allow_credentials="*" not in options.cors_origins,
                allow_headers=["*"],
                expose_headers=["x-request-id", client_fields.HEADER],
            )
        )
    if keys:
        middleware.append(
            Middleware(
                RequireKey,
                keys=keys,
                is_open=lambda path: path in _OPEN or (options.ui and is_page(path)),
                respond=_error_response,
            )
        )
        if any(key.limits != Limits() for key in keys):
            middleware.append(Middleware(KeyLimits, keys=keys, respond=_error_response))
    else:
        middleware.insert(0, Middleware(BrowserGuard, hosts=options.hosts, respond=_error_response))
    middleware.append(Middleware(BodyRoom, max_bytes=options.max_body_bytes))
    app = Starlette(
        routes=[*api_routes(pool, options, keyed=bool(keys)), *(page_routes() if options.ui else ())],
        middleware=middleware,
        exception_handlers=_ERRORS,
    )
    form = options.access_form
    writer = None if form == "off" else Writer(form, options.access_log_file)
    return AccessLog(app, write=writer, respond=_error_response)


def _error_response(scope: Scope, error: ApiError) -> Response:
    """In the form of the API that the path belongs to."""
    path = scope["path"]
    body: Mapping[str, Any]
    if path.startswith("/api/"):
        body = ollama_error(error.body)
    elif path.removeprefix("/v1").removesuffix("/count_tokens") == "/messages":
        body = anthropic_error(error.body, error.status, record_of(scope).id)
    else:
        return error.response()
    return JSONResponse(body, status_code=error.status, headers=error.headers)


def _respond(request: Request, error: ApiError) -> Response:
    record_of(request.scope).error = error.body["error"]["code"] or str(error.status)
    return _error_response(request.scope, error)


def _handler(convert: Callable[[Any], ApiError]) -> ExceptionHandler:
    async def handler(request: Request, error: Exception) -> Response:
        return _respond(request, convert(error))

    return handler


async def _disconnected(_: Request, error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path[:200]}: {error.detail}."
    return _respond(request, ApiError(error.status_code, message, headers=error.headers))


async def _internal_error(request: Request, error: Exception) -> Response:
    # Starlette raises it again afterwards, so that the traceback is in the log.
    message = f"Internal error; the server's log has the details (request {record_of(request.scope).id})."
    return _respond(request, ApiError(500, message, type="server_error"))


_ERRORS: Mapping[Any, ExceptionHandler] = {
    ApiError: _handler(lambda error: error),
    RequestFailedError: _handler(request_failed),
    QueueFullError: _handler(lambda error: queue_full(str(error))),
    TooManySequencesError: _handler(lambda error: ApiError(400, str(error), param="n", code="invalid_value")),
    EngineDownError: _handler(lambda error: engine_down(str(error))),
    ModelNotLoadedError: _handler(lambda error: not_loaded(str(error))),
    ClientDisconnect: _disconnected,
    HTTPException: _http_error,
    Exception: _internal_error,
}
"""What answers each kind of error, in OpenAI's form."""
