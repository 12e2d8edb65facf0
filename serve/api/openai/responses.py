"""/v1/responses without a memory: OpenAI's newer form of a chat, every request with all that was said.

The request is turned into a chat request; the answer is one message. Nothing is stored, so
``previous_response_id`` and the like are refused.
"""

from __future__ import annotations

import secrets
import time
from typing import Annotated, Any, Literal

from pydantic import Field

from serve.api.openai.completions import Answer
from serve.api.openai.requests import (
    ChatRequest,
    JsonObjectFormat,
    JsonSchemaFormat,
    Number,
    Routed,
    Strict,
    TextFormat,
)
from serve.engine.messages import Delta, PrefillDone


class ContentPart(Strict):
    type: Literal["input_text", "output_text"]
    text: str
    annotations: list[Any] = Field([])
    logprobs: list[Any] | None = None


class InputMessage(Strict):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[ContentPart], Field(max_length=1024, fail_fast=True)]
    id: str | None = None
    status: str | None = None
    phase: str | None = None

    def as_chat(self) -> dict[str, str]:
        """The message as the chat routes take it."""
        parts = [self.content] if isinstance(self.content, str) else [part.text for part in self.content]
        return {"role": self.role, "content": "".join(parts)}


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


class ResponsesRequest(Routed):
    """POST /v1/responses"""

    input: str | Annotated[list[InputMessage], Field(min_length=1, max_length=4096, fail_fast=True)]
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1, le=2**31 - 1, description="default: the context")
    temperature: Number = Field(1.0, ge=0, le=10)
    top_p: Number = Field(1.0, ge=0, le=1)
    stream: bool = False
    text: TextOptions = TextOptions()

    def as_chat(self) -> ChatRequest:
        """The same as a chat request."""
        messages = [{"role": "system", "content": self.instructions}] if self.instructions else []
        if isinstance(self.input, str):
            messages.append({"role": "user", "content": self.input})
        else:
            messages.extend(each.as_chat() for each in self.input)
        wanted: Any = self.text.format
        if isinstance(wanted, FlatJsonSchemaFormat):
            inner = {"name": wanted.name, "schema": wanted.schema_}
            wanted = JsonSchemaFormat.model_validate({"type": "json_schema", "json_schema": inner})
        return ChatRequest(
            messages=messages,
            max_completion_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            response_format=wanted,
            stream=self.stream,
        )


class ResponsesAnswer(Answer):
    """One message, whole or as the events of a stream."""

    prefix, whole, part = "resp", "response", "response"
    named_events = True
    ends_in_done = False

    def __init__(self, *, model: str, request: ResponsesRequest) -> None:
        super().__init__(model=model, n_choices=1, n=1, with_logprobs=False)
        self._request = request
        self._message_id = f"msg_{secrets.token_hex(12)}"
        self._number = 0

    def body(self) -> dict[str, Any]:
        """The response as it is now."""
        choice = self._choices[0]
        status = {None: "in_progress", "length": "incomplete"}.get(choice.finish, "completed")
        request = self._request
        return {
            "id": self.id.replace("-", "_", 1),
            "object": "response",
            "created_at": self.created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": {},
            "model": self.model,
            "output": [self._message()] if choice.prompted is not None else [],
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": request.temperature,
            "text": request.text.model_dump(by_alias=True, exclude_none=True),
            "tool_choice": "none",
            "tools": [],
            "top_p": request.top_p,
            "truncation": "disabled",
            "usage": self._tokens() if choice.finish else None,
        }

    def _tokens(self) -> dict[str, Any]:
        usage = self.usage()
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        }

    def _message(self) -> dict[str, Any]:
        choice = self._choices[0]
        status = {None: "in_progress", "length": "incomplete"}.get(choice.finish, "completed")
        content = [self._content("".join(choice.text))] if choice.finish else []
        return {"type": "message", "id": self._message_id, "status": status, "role": "assistant", "content": content}

    @staticmethod
    def _content(text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def chunks(self, index: int, event: PrefillDone | Delta) -> list[dict[str, Any]]:
        """The events of a stream that an engine's event makes."""
        if isinstance(event, PrefillDone):
            begun = {**self.body(), "output": []}
            return [
                self._event("response.created", response=begun),
                self._event("response.in_progress", response=begun),
                self._event("response.output_item.added", output_index=0, item=self._message()),
                self._event("response.content_part.added", **self._place(), part=self._content("")),
            ]
        out = []
        if event.text:
            out.append(self._event("response.output_text.delta", **self._place(), delta=event.text, logprobs=[]))
        if event.finish:
            text, message = "".join(self._choices[0].text), self._message()
            kind = "response.completed" if message["status"] == "completed" else "response.incomplete"
            out += [
                self._event("response.output_text.done", **self._place(), text=text, logprobs=[]),
                self._event("response.content_part.done", **self._place(), part=self._content(text)),
                self._event("response.output_item.done", output_index=0, item=message),
                self._event(kind, response=self.body()),
            ]
        return out

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._message_id, "output_index": 0, "content_index": 0}

    def failure_chunk(self, error: dict[str, Any]) -> dict[str, Any]:
        """For a stream that has begun."""
        inner = error["error"]
        return self._event("error", code=inner["code"], message=inner["message"], param=inner["param"])

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **fields}
