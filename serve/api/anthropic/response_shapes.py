"""The shapes of Anthropic's response bodies.

Tested in tests/serve/api/anthropic/test_messages.py.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from slm.serve.api.core.shapes import Warnings

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]

_closed = with_config(ConfigDict(extra="forbid"))


@_closed
class TextContent(TypedDict):
    type: Literal["text"]
    text: str
    citations: None


@_closed
class ThinkingContent(TypedDict):
    type: Literal["thinking"]
    thinking: str
    signature: Annotated[str, Field(description="always empty")]


@_closed
class ToolUseContent(TypedDict):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


@_closed
class AnthropicUsage(TypedDict):
    input_tokens: Annotated[int, Field(description="prompt tokens that were computed")]
    cache_creation_input_tokens: int
    cache_read_input_tokens: Annotated[int, Field(description="prompt tokens found in the prefix cache")]
    output_tokens: int


@_closed
class AnthropicMessage(TypedDict):
    """A whole response. The events of a stream are Anthropic's: message_start to message_stop."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[TextContent | ThinkingContent | ToolUseContent]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: AnthropicUsage
    warnings: NotRequired[Warnings]


@_closed
class AnthropicErrorDetail(TypedDict):
    type: Annotated[str, Field(description="invalid_request_error, not_found_error, rate_limit_error, api_error, ...")]
    message: str


@_closed
class AnthropicError(TypedDict):
    """The body of every response of /v1/messages that is not a success."""

    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: str | None


@_closed
class AnthropicTokens(TypedDict):
    input_tokens: int
