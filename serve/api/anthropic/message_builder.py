"""/v1/messages: response bodies, whole or as the events of a stream, and errors in Anthropic's form.

Tested in tests/serve/api/anthropic/test_messages.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from pydantic_core import from_json

from slm.serve.api.anthropic.response_shapes import (
    AnthropicError,
    AnthropicErrorDetail,
    AnthropicMessage,
    AnthropicUsage,
    StopReason,
    TextContent,
    ThinkingContent,
    ToolUseContent,
)
from slm.serve.api.core.replies import Block, BlockBuilder, ReplyForm, prompt_progress
from slm.serve.api.errors import Error
from slm.serve.engine.protocol import PrefillProgress

_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_DELTAS = {"content": ("text_delta", "text"), "reasoning": ("thinking_delta", "thinking"),
           "call": ("input_json_delta", "partial_json")}  # fmt: skip


def error_body(error: Error, status: int, request_id: str | None) -> AnthropicError:
    """An error in Anthropic's form."""
    detail = error["error"]
    kind = _ERROR_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    said = AnthropicErrorDetail(type=kind, message=detail["message"])
    return AnthropicError(type="error", error=said, request_id=request_id)


class MessageBuilder(BlockBuilder):
    """One message of text, thinking and tool use."""

    id_prefix = "msg"

    def __init__(self, *, model: str, form: ReplyForm, stops: Sequence[str] = ()) -> None:
        super().__init__(model=model, form=form)
        self._stops = stops

    def body(self) -> AnthropicMessage:
        """The body of the response as it is now."""
        return AnthropicMessage(
            id=self.id.replace("-", "_", 1),
            type="message",
            role="assistant",
            model=self.model,
            content=[_content(each) for each in self._blocks],
            stop_reason=self._stop_reason(),
            stop_sequence=self._stop_sequence(),
            usage=self._usage(),
        )

    def _stop_reason(self) -> StopReason | None:
        choice = self._choices[0]
        if choice.finish is None:
            return None
        if choice.finish == "length":
            return "max_tokens"
        if self._stop_sequence() is not None:
            return "stop_sequence"
        is_call = self._blocks and self._blocks[-1].kind == "call" and not self._reader.in_call
        return "tool_use" if is_call else "end_turn"

    def _stop_sequence(self) -> str | None:
        """The one of the request that ended the reply. What ends every turn of a model without a template is none."""
        found = self._choices[0].stop_string
        return found if found in self._stops else None

    def _usage(self) -> AnthropicUsage:
        usage = self.usage()
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return AnthropicUsage(
            input_tokens=usage["prompt_tokens"] - cached,
            cache_creation_input_tokens=0,
            cache_read_input_tokens=cached,
            output_tokens=usage["completion_tokens"],
        )

    def _begun(self) -> list[dict[str, Any]]:
        return [{"type": "message_start", "message": self.body()}]

    def progress_chunk(self, index: int, event: PrefillProgress) -> dict[str, Any]:
        """The event about how much of the prompt is computed: one that Anthropic's clients skip."""
        return {"type": "ping", "prompt_progress": prompt_progress(event)}

    def _opened(self, index: int, block: Block) -> list[dict[str, Any]]:
        return [{"type": "content_block_start", "index": index, "content_block": _content(block)}]

    def _grown(self, index: int, block: Block, text: str) -> list[dict[str, Any]]:
        kind, field = _DELTAS[block.kind]
        return [{"type": "content_block_delta", "index": index, "delta": {"type": kind, field: text}}]

    def _closed(self, index: int, block: Block) -> list[dict[str, Any]]:
        return [{"type": "content_block_stop", "index": index}]

    def _ended(self) -> list[dict[str, Any]]:
        delta = {"stop_reason": self._stop_reason(), "stop_sequence": self._stop_sequence()}
        return [{"type": "message_delta", "delta": delta, "usage": self._usage()}, {"type": "message_stop"}]

    def error_chunk(self, error: Error) -> dict[str, Any]:
        """The last event of a stream that fails."""
        return {**error_body(error, 500, None)}


def _content(block: Block) -> TextContent | ThinkingContent | ToolUseContent:
    match block.kind:
        case "reasoning":
            return ThinkingContent(type="thinking", thinking=block.text, signature="")
        case "call":
            given: Any = {}
            with contextlib.suppress(ValueError):  # it may be cut off by max_tokens
                given = from_json(block.text, allow_partial="trailing-strings")
            return ToolUseContent(type="tool_use", id=f"toolu_{block.id}", name=block.name, input=given)
    return TextContent(type="text", text=block.text, citations=None)
