"""From JSON bytes to a validated request body; every mistake is reported as OpenAI's clients expect.

``slm.serve.api.client_fields`` decides about the fields that a body has and its class does not.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterable
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from slm.data.errors import nearest
from slm.serve.api.client_fields import Reading
from slm.serve.api.core.fields import ModelRequest
from slm.serve.api.core.requests import CompletionRequest
from slm.serve.api.core.token_requests import EmbeddingRequest
from slm.serve.api.errors import ApiError

Body = TypeVar("Body", bound=ModelRequest)


def parse(cls: type[Body], raw: bytes, *, strict: bool = False) -> Body:
    """A validated body from JSON bytes; every mistake is an ``ApiError`` 400 that names the parameter.

    ``strict``: a field that the server does not use is a mistake; else the body's ``ignored`` names it.
    """
    # JSON cannot hold reference cycles; the collector would look for them in a body of a million lists again and again.
    collects = gc.isenabled()
    gc.disable()
    try:
        return _parse(cls, raw, strict)
    finally:
        if collects:
            gc.enable()


def _parse(cls: type[Body], raw: bytes, strict: bool) -> Body:
    try:
        value = {} if not raw and cls.may_be_empty else _value(raw)
    except (ValueError, RecursionError) as error:
        if isinstance(error, RecursionError) or "recursion limit" in str(error):
            raise ApiError(400, "The body is nested too deeply.", code="invalid_json") from None
        raise ApiError(400, f"The body is not valid JSON: {error}.", code="invalid_json") from None
    if isinstance(value, list) and cls.list_field:
        value = {cls.list_field: value}
    if not isinstance(value, dict):
        raise ApiError(400, f"The body must be a JSON object, not {_json_type(value)}.", code="invalid_json")
    reading = Reading(route=cls.route, strict=strict)
    try:
        body = cls.model_validate(value, context=reading)
    except ValidationError as error:
        # Some clients send null for a field that is not given.
        raise _explain(error, cls, {key: each for key, each in value.items() if each is not None}) from None
    body.ignored.extend(reading.ignored)
    return body


def _value(raw: bytes) -> Any:
    try:
        return from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        # Half of a surrogate pair is valid JSON (programs that cut UTF-16 text send it). Only Python's parser takes it.
        if "hex escape" not in str(error):
            raise
    return json.loads(raw, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _unknown(name: str, known: Iterable[str]) -> ApiError:
    hint = nearest(name, known) if known else ""
    message = f"Unknown parameter {name!r}{f' ({hint})' if hint else ''}."
    return ApiError(400, message, param=name, code="unknown_parameter")


def _json_type(value: Any) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null")


def _path(loc: tuple[int | str, ...], value: Any) -> list[str]:
    """The places in a body that an error's location names. A union's branches are in the location, too, by names that
    mean nothing to a caller."""
    path: list[str] = []
    for i, part in enumerate(loc):
        last = i == len(loc) - 1
        if isinstance(value, list) and isinstance(part, int):
            inner = value[part] if part < len(value) else None
        elif isinstance(value, dict) and (part in value or last):
            inner = value.get(part)
        else:
            continue
        is_tag = isinstance(value, dict) and value.get("type") == part
        if is_tag and not last and not isinstance(inner, dict | list):
            continue  # a branch with the name of a field beside the one that is meant
        value = inner
        path.append(str(part))
    return path


def _explain(error: ValidationError, cls: type[BaseModel], fields: dict[str, Any]) -> ApiError:
    errors = error.errors(include_url=False, include_input=False)
    # The caller meant the branch of a union where the error lies deepest.
    first = max((each for each in errors if each["loc"][:1] == errors[0]["loc"][:1]), key=lambda each: len(each["loc"]))
    message = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:  # the body itself
        return ApiError(400, f"The body: {message}.", code="invalid_value")
    path = _path(first["loc"], fields)
    param = ".".join(path)[:200]
    top = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        name = param or top[:100]
        return _unknown(name, cls.model_fields if len(path) <= 1 else ())
    if first["type"] == "missing":
        return ApiError(400, f"{param} is missing.", param=param, code="missing_required_parameter")
    if top in ("prompt", "input") and cls in (CompletionRequest, EmbeddingRequest):
        wanted = "must be a text, a list of texts, a list of token ids or a list of such lists, none empty"
        return ApiError(400, f"{top} {wanted}.", param=top, code="invalid_value")
    return ApiError(400, f"{param}: {message}.", param=param, code="invalid_value")
