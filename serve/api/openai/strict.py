"""The base of all request bodies: a JSON object with no other fields and no conversions.

Tested in tests/serve/api/openai/test_requests.py.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

MAX_FIELDS = 1024
"""Most fields of one object."""


def few_fields(value: Any) -> Any:
    """The value, if it has not too many fields."""
    if isinstance(value, dict) and len(value) > MAX_FIELDS:
        raise ValueError(f"{len(value)} fields; an object may have at most {MAX_FIELDS}")
    return value


class Strict(BaseModel):
    """A JSON object with no other fields and no conversions."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _not_too_many(cls, value: Any) -> Any:
        return few_fields(value)
