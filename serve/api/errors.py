"""Errors as OpenAI's clients expect them: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse

from data.errors import nearest
from serve.pool.request_stream import RequestFailedError


class ApiError(Exception):
    """An answer other than success."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers
        self.body = {"error": {"message": message, "type": type, "param": param, "code": code}}

    def response(self) -> JSONResponse:
        """The HTTP answer."""
        return JSONResponse(self.body, status_code=self.status, headers=self.headers)


def no_such_model(model: str, models: list[str]) -> ApiError:
    """404 that names the nearest; ``model`` is any text."""
    hint = nearest(model[:100], models) if len(models) > 1 else ""
    there = ", ".join(repr(each) for each in models[:20])
    message = f"There is no model {model[:100]!r} here; {hint + ' ' if hint else ''}this server has {there}."
    return ApiError(404, message, param="model", code="model_not_found")


def queue_full(message: str) -> ApiError:
    """429; a second is about what a place in the queue takes to come free."""
    return ApiError(429, message, type="rate_limit_error", code="queue_full", headers={"Retry-After": "1"})


def engine_down(message: str) -> ApiError:
    """503."""
    return ApiError(503, message, type="server_error", code="engine_unavailable", headers={"Retry-After": "2"})


def out_of_time(message: str) -> ApiError:
    """408. OpenAI's client would ask again by itself; whoever set the limit has given up."""
    headers = {"x-should-retry": "false"}
    return ApiError(408, message, type="timeout_error", param="timeout_s", code="deadline_exceeded", headers=headers)


def not_loaded(message: str) -> ApiError:
    """503 for a model that is configured and cannot be loaded."""
    return ApiError(503, message, type="server_error", code="model_unavailable", headers={"Retry-After": "5"})


def request_failed(error: RequestFailedError, *, param: str = "prompt") -> ApiError:
    """What the engine said of a request; ``param`` is the field that it takes its tokens from."""
    if error.code == "context_length_exceeded":
        return ApiError(400, str(error), param=param, code=error.code)
    if error.code == "invalid_request":
        return ApiError(400, str(error))
    if error.code == "deadline_exceeded":
        return out_of_time(str(error))
    if error.code == "engine_died":
        return ApiError(503, str(error), type="server_error", code=error.code, headers={"Retry-After": "2"})
    return ApiError(500, str(error), type="server_error", code=error.code)


def error_body(error: Exception) -> dict[str, Any]:
    """For a stream that has already begun and cannot change its status."""
    assert isinstance(error, RequestFailedError)
    return request_failed(error).body
