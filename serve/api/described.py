"""What the OpenAPI document says of a route: the tables of each API are made of these.

Tested in tests/serve/api/openai/test_openapi.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from slm.serve.api.core.fields import ModelRequest
from slm.serve.api.errors import Error

GENERATION = "Generation"
TOKENS = "Tokens and embeddings"
MODELS = "Models and state"


@dataclass(frozen=True, kw_only=True)
class Post:
    """A route that takes a body."""

    tag: str
    summary: str
    about: str
    body: type[ModelRequest]
    response: type
    others: tuple[dict[str, Any], ...] = ()
    """Schemas of what the response may be instead."""
    streams: bool = False
    event: type | None = None
    """The type of a stream's events."""
    stream_type: str = "text/event-stream"
    stream_form: str = "server-sent events"
    error: type = Error
    more_errors: tuple[str, ...] = ()
    """Statuses that other routes do not have."""
    examples: dict[str, dict[str, Any]] = field(default_factory=dict)
    parameters: tuple[dict[str, Any], ...] = ()
    """Parameters of the path and the query."""


@dataclass(frozen=True, kw_only=True)
class Get:
    """A route without a body. ``of_model``: its query may name a model."""

    tag: str
    summary: str
    response: type
    of_model: bool = False
