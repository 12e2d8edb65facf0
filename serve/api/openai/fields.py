"""What request bodies have in common: their strict base, shared fields, numbers, and texts or token ids.

Tested in tests/serve/api/openai/test_requests.py.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from slm.serve.api.errors import ApiError
from slm.serve.engine.messages import ModelInfo

MAX_FIELDS = 1024
"""Most fields of one object."""
MAX_TOKENS = 1 << 20
"""Most token ids of one list."""
MAX_TIMEOUT_S = 86_400

TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
Number = Annotated[float, Field(allow_inf_nan=False)]
# `fail_fast` refuses a list at its first mistake: to report a million of them would take seconds.
Texts = Annotated[list[str], Field(min_length=1, fail_fast=True)]
Tokens = Annotated[list[TokenId], Field(min_length=1, max_length=MAX_TOKENS, fail_fast=True)]
TokenLists = Annotated[list[Tokens], Field(min_length=1, fail_fast=True)]


def few_fields(value: Any) -> Any:
    """The value, if it has not too many fields."""
    if isinstance(value, dict) and len(value) > MAX_FIELDS:
        raise ValueError(f"{len(value)} fields; an object may have at most {MAX_FIELDS}")
    return value


class Strict(BaseModel):
    """A JSON object with no other fields and no conversions. A field that is null counts as not given."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _given_and_few(cls, value: Any) -> Any:
        value = few_fields(value)
        return {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else value


class ModelRequest(Strict):
    """The fields of every request to a model."""

    model: str | None = Field(default=None, max_length=512, description="a name from /v1/models; default: the first")
    timeout_s: Number | None = Field(
        default=None,
        gt=0,
        le=MAX_TIMEOUT_S,
        description="seconds for the whole request, which then ends with the text so far",
    )


def texts_or_tokens(given: Any, info: ModelInfo, param: str) -> list[str | tuple[int, ...]]:
    """One entry per text or list of ids; raises ``ApiError`` for an id outside the vocabulary."""
    if isinstance(given, str):
        return [given]
    if isinstance(given[0], int):
        texts: list[str | tuple[int, ...]] = [tuple(given)]
    else:
        texts = [each if isinstance(each, str) else tuple(each) for each in given]
    for each in texts:
        if not isinstance(each, str):
            check_tokens(each, info, param)
    return texts


def check_tokens(tokens: tuple[int, ...], info: ModelInfo, param: str) -> None:
    """Raises ``ApiError`` for an id outside the vocabulary."""
    worst = max(tokens, default=0)
    if worst >= info.n_vocab:
        raise ApiError(400, f"{param}: {worst} is not a token id of this model (0 to {info.n_vocab - 1}).", param=param)
