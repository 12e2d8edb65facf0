"""/v1/responses, OpenAI's newer form of a chat: request and response bodies.

The server stores nothing: every request holds the whole conversation, and ``previous_response_id`` and the like are
refused. A request is turned into a chat request; the response is one message.
"""

from __future__ import annotations

import secrets
import time
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from serve.api.errors import ApiError, Error
from serve.api.openai.requests import (
    MAX_MESSAGES,
    ChatRequest,
    JsonObjectFormat,
    JsonSchema,
    JsonSchemaFormat,
    Message,
    ModelRequest,
    Number,
    Strict,
    TextFormat,
    TruncationField,
)
from serve.api.openai.response_builder import ResponseBuilder
from serve.api.openai.response_shapes import (
    IncompleteDetails,
    InputTokensDetails,
    OutputMessage,
    OutputText,
    OutputTokensDetails,
    Response,
    ResponseStatus,
    ResponseUsage,
)
from serve.config import Truncation
from serve.engine.messages import Delta, PrefillDone


class ContentPart(Strict):
    type: Literal["input_text", "output_text"]
    text: str
    annotations: list[Any] = Field(default=[])
    logprobs: list[Any] | None = None


class InputMessage(Strict):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[ContentPart], Field(max_length=1024, fail_fast=True)]
    id: str | None = None
    status: str | None = None
    phase: str | None = None

    def as_chat(self) -> Message:
        """The message as the chat route takes it."""
        parts = [self.content] if isinstance(self.content, str) else [part.text for part in self.content]
        return Message(role=self.role, content="".join(parts))


class FlatJsonSchemaFormat(Strict):
    type: Literal["json_schema"]
    name: str = Field(max_length=256)
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class TextOptions(Strict):
    format: Annotated[TextFormat | JsonObjectFormat | FlatJsonSchemaFormat, Field(discriminator="type")] = TextFormat(
        type="text"
    )


class ResponsesRequest(ModelRequest):
    """POST /v1/responses"""

    input: str | Annotated[list[InputMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    instructions: str | None = None
    max_output_tokens: int | None = Field(default=None, ge=1, le=2**31 - 1, description="default: the context")
    temperature: Number = Field(default=1.0, ge=0, le=10)
    top_p: Number = Field(default=1.0, ge=0, le=1)
    stream: bool = False
    text: TextOptions = TextOptions()
    truncation: TruncationField = None

    def as_chat(self) -> ChatRequest:
        """The same as a chat request. Raises ``ApiError`` for more messages than a chat may have."""
        messages = [Message(role="system", content=self.instructions)] if self.instructions else []
        if isinstance(self.input, str):
            messages.append(Message(role="user", content=self.input))
        else:
            messages.extend(each.as_chat() for each in self.input)
            if len(messages) > MAX_MESSAGES:
                message = f"input: with instructions, at most {MAX_MESSAGES - 1} messages."
                raise ApiError(400, message, param="input", code="invalid_value")
        response_format: TextFormat | JsonObjectFormat | JsonSchemaFormat
        if isinstance(self.text.format, FlatJsonSchemaFormat):
            inner = JsonSchema.model_validate({"name": self.text.format.name, "schema": self.text.format.schema_})
            response_format = JsonSchemaFormat(type="json_schema", json_schema=inner)
        else:
            response_format = self.text.format
        return ChatRequest(
            messages=messages,
            max_completion_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            response_format=response_format,
            stream=self.stream,
            truncation=self.truncation,
        )


class ResponsesBuilder(ResponseBuilder):
    """One message, whole or as the events of a stream."""

    id_prefix: ClassVar[str] = "resp"
    named_events = True
    ends_in_done = False

    def __init__(self, *, model: str, request: ResponsesRequest, truncation: Truncation) -> None:
        super().__init__(model=model, n_choices=1, n=1, with_logprobs=False)
        self._request, self._truncation = request, truncation
        self._message_id = f"msg_{secrets.token_hex(12)}"
        self._sequence_number = 0

    def body(self) -> Response:
        """The response as it is now."""
        choice = self._choices[0]
        status = self._status()
        request = self._request
        response = Response(
            id=self.id.replace("-", "_", 1),
            object="response",
            created_at=self.created,
            completed_at=int(time.time()) if status == "completed" else None,
            status=status,
            background=False,
            error=None,
            incomplete_details=IncompleteDetails(reason="max_output_tokens") if status == "incomplete" else None,
            instructions=request.instructions,
            max_output_tokens=request.max_output_tokens,
            metadata={},
            model=self.model,
            output=[self._message()] if choice.prefill is not None else [],
            parallel_tool_calls=False,
            previous_response_id=None,
            reasoning={"effort": None, "summary": None},
            store=False,
            temperature=request.temperature,
            text=request.text.model_dump(by_alias=True, exclude_none=True),
            tool_choice="none",
            tools=[],
            top_p=request.top_p,
            truncation=self._truncation,
            usage=self._response_usage() if choice.finish else None,
        )
        if self.dropped_messages:
            response["dropped_messages"] = self.dropped_messages
        return response

    def _status(self) -> ResponseStatus:
        match self._choices[0].finish:
            case None:
                return "in_progress"
            case "length":
                return "incomplete"
            case _:
                return "completed"

    def _response_usage(self) -> ResponseUsage:
        usage = self.usage()
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return ResponseUsage(
            input_tokens=usage["prompt_tokens"],
            input_tokens_details=InputTokensDetails(cached_tokens=cached, cache_write_tokens=0),
            output_tokens=usage["completion_tokens"],
            output_tokens_details=OutputTokensDetails(reasoning_tokens=0),
            total_tokens=usage["total_tokens"],
        )

    def _message(self) -> OutputMessage:
        choice = self._choices[0]
        return OutputMessage(
            type="message",
            id=self._message_id,
            status=self._status(),
            role="assistant",
            content=[_output_text("".join(choice.text))] if choice.finish else [],
        )

    def chunks(self, index: int, event: PrefillDone | Delta) -> list[dict[str, Any]]:
        """The events of a stream that an event of the engine makes."""
        if isinstance(event, PrefillDone):
            begun = self.body()
            begun["output"] = []
            return [
                self._event("response.created", response=begun),
                self._event("response.in_progress", response=begun),
                self._event("response.output_item.added", output_index=0, item=self._message()),
                self._event("response.content_part.added", **self._position(), part=_output_text("")),
            ]
        events = []
        if event.text:
            events.append(self._event("response.output_text.delta", **self._position(), delta=event.text, logprobs=[]))
        if event.finish:
            text, message = "".join(self._choices[0].text), self._message()
            kind = "response.completed" if message["status"] == "completed" else "response.incomplete"
            events += [
                self._event("response.output_text.done", **self._position(), text=text, logprobs=[]),
                self._event("response.content_part.done", **self._position(), part=_output_text(text)),
                self._event("response.output_item.done", output_index=0, item=message),
                self._event(kind, response=self.body()),
            ]
        return events

    def error_chunk(self, error: Error) -> dict[str, Any]:
        """The last event of a stream that fails."""
        detail = error["error"]
        return self._event("error", code=detail["code"], message=detail["message"], param=detail["param"])

    def _position(self) -> dict[str, Any]:
        return {"item_id": self._message_id, "output_index": 0, "content_index": 0}

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        self._sequence_number += 1
        return {"type": kind, "sequence_number": self._sequence_number - 1, **fields}


def _output_text(text: str) -> OutputText:
    return OutputText(type="output_text", text=text, annotations=[], logprobs=[])
