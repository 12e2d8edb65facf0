"""Errors as OpenAI's clients expect them: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, NotRequired

from pydantic import ConfigDict, Field, with_config
from starlette.responses import JSONResponse
from typing_extensions import TypedDict

from slm.data.errors import nearest
from slm.serve.pool.request_stream import RequestFailedError


@with_config(ConfigDict(extra="forbid"))
class ErrorDetail(TypedDict):
    message: Annotated[str, Field(description="what is wrong, and what would be right")]
    type: Annotated[
        str,
        Field(description="invalid_request_error, exceed_context_size_error, rate_limit_error, timeout_error or such"),
    ]
    param: Annotated[str | None, Field(description="the field that is meant")]
    code: Annotated[str | None, Field(description="for programs, such as context_length_exceeded or queue_full")]
    n_prompt_tokens: NotRequired[
        Annotated[int, Field(description="with context_length_exceeded, as llama-server has it: at least this many")]
    ]
    n_ctx: NotRequired[Annotated[int, Field(description="with context_length_exceeded: the most tokens that fit")]]


@with_config(ConfigDict(extra="forbid"))
class Error(TypedDict):
    """The body of every response that is not a success."""

    error: ErrorDetail


class ApiError(Exception):
    """Ends a request with an error response."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        message, param = sendable(message), None if param is None else sendable(param)
        self.status, self.headers = status, headers
        self.body = Error(error=ErrorDetail(message=message, type=type, param=param, code=code))

    def response(self) -> JSONResponse:
        """The HTTP response."""
        return JSONResponse(self.body, status_code=self.status, headers=self.headers)


def sendable(text: str) -> str:
    """``text`` with a question mark for each half of a surrogate pair, which UTF-8 cannot hold."""
    return text.encode("utf-8", "replace").decode("utf-8")


def no_such_model(model: str, models: list[str]) -> ApiError:
    """404 that names the nearest of ``models``; ``model`` is any text."""
    hint = nearest(model[:100], models) if len(models) > 1 else ""
    there = ", ".join(repr(each) for each in models[:20])
    message = f"There is no model {model[:100]!r} here{f' ({hint})' if hint else ''}. This server has {there}. "
    message += "(serve.only_known_models=false lets the first of them answer to every name.)"
    return ApiError(404, message, param="model", code="model_not_found")


def queue_full(message: str) -> ApiError:
    """429. A place in the queue becomes free after about a second."""
    return ApiError(429, message, type="rate_limit_error", code="queue_full", headers={"Retry-After": "1"})


def engine_down(message: str) -> ApiError:
    """503 while there is no engine."""
    return ApiError(503, message, type="server_error", code="engine_unavailable", headers={"Retry-After": "2"})


def overloaded(message: str) -> ApiError:
    """503 for what the server has no memory for at the moment; the rest of the body is not read."""
    headers = {"Retry-After": "2", "Connection": "close"}
    return ApiError(503, message, type="server_error", code="overloaded", headers=headers)


def out_of_time(message: str) -> ApiError:
    """408 for a request that has run out of time."""
    # OpenAI's client would try again by itself, although the caller who set the limit has given up.
    headers = {"x-should-retry": "false"}
    return ApiError(408, message, type="timeout_error", param="timeout_s", code="deadline_exceeded", headers=headers)


def not_loaded(message: str) -> ApiError:
    """503 for a model that is configured but cannot be loaded."""
    return ApiError(503, message, type="server_error", code="model_unavailable", headers={"Retry-After": "5"})


def request_failed(error: RequestFailedError, *, param: str = "prompt", if_too_long: str = "") -> ApiError:
    """The error for a request that the engine refused or lost. ``param`` is the field that its tokens came from;
    ``if_too_long`` is added to the message where they were too many."""
    if error.code == "context_length_exceeded":
        # The code is OpenAI's, the type llama-server's: programs that shorten a chat look for one or the other.
        kind = "exceed_context_size_error"
        made = ApiError(400, f"{error} {if_too_long}".rstrip(), type=kind, param=param, code=error.code)
        if error.n_context:
            made.body["error"]["n_prompt_tokens"], made.body["error"]["n_ctx"] = error.n_tokens, error.n_context
        return made
    if error.code == "invalid_request":
        return ApiError(400, str(error))
    if error.code == "deadline_exceeded":
        return out_of_time(str(error))
    if error.code == "engine_died":
        return ApiError(503, str(error), type="server_error", code=error.code, headers={"Retry-After": "2"})
    return ApiError(500, str(error), type="server_error", code=error.code)
