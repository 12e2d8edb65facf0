"""Errors as OpenAI's clients expect them: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse

from serve.supervisor import RequestFailedError


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


def queue_full(message: str) -> ApiError:
    """429; a second is about what a place in the queue takes to come free."""
    return ApiError(429, message, type="rate_limit_error", code="queue_full", headers={"Retry-After": "1"})


def engine_down(message: str) -> ApiError:
    """503."""
    return ApiError(503, message, type="server_error", code="engine_unavailable", headers={"Retry-After": "2"})


def request_failed(error: RequestFailedError, *, param: str = "prompt") -> ApiError:
    """What the engine said of a request; `param` is the field that it takes its tokens from."""
    if error.code == "context_length_exceeded":
        return ApiError(400, str(error), param=param, code=error.code)
    if error.code == "invalid_request":
        return ApiError(400, str(error))
    return ApiError(503 if error.code == "engine_died" else 500, str(error), type="server_error", code=error.code)


def error_body(error: Exception) -> dict[str, Any]:
    """For a stream that has already begun and cannot change its status."""
    assert isinstance(error, RequestFailedError)
    return request_failed(error).body
